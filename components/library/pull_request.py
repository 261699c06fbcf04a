"""Opens a pull request on a model's repository with the files that `shrink` wrote, with the user's own token."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from analyzers.checkpoints import Access, parse_reference, quoted
from analyzers.checkpoints.hub.hub_repository import open_hub
from analyzers.core.errors import AccessDenied, HubError, HubUnreachable, InvalidRequest, LimitExceeded, ModelTooLarge, UnsupportedWeights
from analyzers.core.formatting import share
from analyzers.core.records import Record
from analyzers.core.request import Progress
from analyzers.shrink import ShrinkReport, shrink
from components.library.contribute import logged_in
from components.library.dataset import Conflict, as_ours, passes, use_bounded_client

_TITLE = "Store the weights in"
# Open pull requests of a model that are looked at: a page of the Hub's list, the newest first.
_LISTED = 50
_ADVICE = "check that your login may open pull requests on it (the scope write-discussions, or a token that may write discussions)"


class PullRequest:
    """A pull request to be opened on the repository of ``model``. token: the user's, by default that of this machine's login.

    Raises InvalidRequest for anything but a model on the Hub, AccessDenied without a login, before anything is read or written.
    """

    def __init__(self, model: str, token: str | None = None) -> None:
        reference = parse_reference(model, local=True)
        if reference.kind != "hub" or reference.revision is not None:
            raise InvalidRequest(f"--pull-request needs a model of the Hub, without a revision, to open it on, not {quoted(model, 200)}.")
        token = logged_in() if token is None else token
        if not token:
            raise AccessDenied("--pull-request needs a login to the Hub: run hf auth login, or set HF_TOKEN.")
        self._model, self._token = reference.name, token

    def _api(self) -> Any:
        from huggingface_hub import HfApi, constants

        use_bounded_client()
        return HfApi(endpoint=constants.ENDPOINT, token=self._token)

    def check_new(self) -> None:
        """Raise InvalidRequest if such a pull request is open already, whoever opened it."""
        with as_ours(self._model, "model", _ADVICE):
            opened = self._api().get_repo_discussions(self._model, discussion_type="pull_request", discussion_status="open")
            same = next((each for each in islice(opened, _LISTED) if each.title.startswith(_TITLE)), None)
        if same is not None:
            raise InvalidRequest(f"{self._model} has such a pull request already: {same.url}")

    def open(self, report: ShrinkReport) -> Iterator[Progress | str]:
        """Open the pull request with the files that differ, on the commit that was shrunk. Yields progress, then its address.

        Raises InvalidRequest if the repository has changed in the meantime, AccessDenied, CheckpointNotFound, HubError.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        name, folder = report.model, Path(report.out)
        saved = share(1 - report.bytes_after / report.bytes_before)
        api = self._api()
        operations: list[Any] = []
        total = sum((folder / path).stat().st_size for path in report.written)
        try:
            with ExitStack() as opened:
                for path in report.written:
                    # open files, since for paths the library draws a progress bar even if standard error is no terminal
                    file = opened.enter_context((folder / path).open("rb"))
                    done = sum((folder / each.path_in_repo).stat().st_size for each in operations)
                    yield Progress(done=done, total=total, unit="bytes", note="uploading")
                    with as_ours(name, "model", _ADVICE):  # one by one, since it sends several from its own threads
                        operations.append(CommitOperationAdd(path_in_repo=path, path_or_fileobj=file))
                        api.preupload_lfs_files(name, operations[-1:], create_pr=True, free_memory=False)
                operations += [CommitOperationDelete(path_in_repo=path) for path in report.replaced]
                yield Progress(done=0, total=0, unit="", note="opening the pull request")
                with as_ours(name, "model", _ADVICE):
                    made = api.create_commit(
                        name,
                        operations,
                        commit_message=f"{_TITLE} {saved} fewer bytes",
                        commit_description="Every value is the same, bit for bit: `mantissa shrink` has read the result back and compared. "
                        f"{report.bytes_before:,} bytes of tensors become {report.bytes_after:,}.",
                        create_pr=True,
                        parent_commit=report.commit,
                    )
        except Conflict:
            raise InvalidRequest(f"{name} has changed since it was read, so no pull request was opened: start again.") from None
        except HubError as error:
            if passes(error):
                raise HubUnreachable(
                    f"The Hub failed before it confirmed a pull request: look whether {name} has it. Otherwise {quoted(report.out, 200)} "
                    f"is complete, and hf upload {name} and its path, with --create-pr, tries again."
                ) from None
            raise
        yield str(made.pr_url)


class Opened(Record):
    """A pull request that was opened. url: its address; the rest as in `ShrinkReport`, with the number of ``narrowed`` tensors."""

    url: str
    bytes_before: int
    bytes_after: int
    tensors: int
    narrowed: int
    notes: tuple[str, ...]


def shrink_and_open(model: str, commit: str, most: int, largest: int, token: str) -> Iterator[Progress | Opened]:
    """Shrink this commit of ``model`` into a temporary folder and open a pull request with the result. Yields progress, then the outcome.

    most: bytes of tensors that the result may have; if values need more, nothing is opened. largest: bytes of the checkpoint. Raises
    InvalidRequest if the commit is not the newest or there is such a pull request, LimitExceeded, and the errors of `shrink` and of
    `PullRequest.open`.
    """
    access, request = Access(token=token), PullRequest(model, token)
    with closing(open_hub(model, None, access)) as head:
        if head.commit != commit:
            raise InvalidRequest(f"{model} has changed since this result, so no pull request was opened: look at the newest commit first.")
    request.check_new()
    with TemporaryDirectory(prefix="mantissa-") as folder:
        try:
            items = shrink(f"{model}@{commit}", f"{folder}/copy", access=access, changed_only=True, largest=largest)
            for item in items:
                if isinstance(item, Progress):
                    yield item
            assert isinstance(item, ShrinkReport)
        except (InvalidRequest, ModelTooLarge):  # which name a folder of the server
            raise LimitExceeded("The disk of this app has no room for the copy now: try again later, or use the command.") from None
        if not item.written or item.bytes_after > most:
            raise UnsupportedWeights(
                f"No pull request was opened: {item.bytes_after:,} bytes would be left, not {most:,}, since some values need more bits. "
                "Check reads all of it, and offers what is possible."
            )
        try:
            for step in request.open(item):
                if isinstance(step, Progress):
                    yield step
        except HubUnreachable:
            raise HubUnreachable(f"The Hub failed before it confirmed a pull request: look whether {model} has it.") from None
        yield Opened(
            url=str(step),
            bytes_before=item.bytes_before,
            bytes_after=item.bytes_after,
            tensors=len(item.tensors),
            narrowed=sum(each.to not in (None, each.from_) for each in item.tensors),
            notes=tuple(note.text for note in item.notes),
        )
