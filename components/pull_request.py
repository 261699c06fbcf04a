"""Opens a pull request on a model's repository with the files that `shrink` wrote, with the user's own token."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from analyzers.checkpoints import Access
from analyzers.checkpoints.hub.hub_repository import open_hub
from analyzers.core.errors import HubUnreachable, InvalidRequest, LimitExceeded, ModelTooLarge, UnsupportedWeights
from analyzers.core.formatting import share
from analyzers.core.request import Progress
from analyzers.write.report import ShrinkReport
from analyzers.write.shrink import shrink
from components.library.hub import Conflict, hub_errors, use_bounded_client

_TITLE = "Store the weights in"
_LISTED = 50  # Open pull requests of a model that are looked at: a page of the Hub's list, the newest first.
_ADVICE = "check that your login may open pull requests on it (the scope write-discussions, or a token that may write discussions)"


class PullRequest:
    """A pull request to be opened on the repository of ``model``, a model of the Hub. token: the user's."""

    def __init__(self, model: str, token: str) -> None:
        from huggingface_hub import HfApi, constants

        use_bounded_client()
        self._model, self._api = model, HfApi(endpoint=constants.ENDPOINT, token=token)

    def check_new(self) -> None:
        """Raise InvalidRequest if such a pull request is open already, whoever opened it."""
        with hub_errors(f"the model {self._model}", _ADVICE):
            opened = self._api.get_repo_discussions(self._model, discussion_type="pull_request", discussion_status="open")
            same = next((each for each in islice(opened, _LISTED) if each.title.startswith(_TITLE)), None)
        if same is not None:
            raise InvalidRequest(f"{self._model} has such a pull request already: {same.url}")

    def open(self, report: ShrinkReport) -> Iterator[Progress | str]:
        """Open the pull request with the files that differ, on the commit that was shrunk. Yields progress, then its address.

        Raises InvalidRequest if the repository has changed in the meantime, AccessDenied, CheckpointNotFound, HubError.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        name, folder = report.model, Path(report.out)
        operations: list[Any] = [CommitOperationDelete(path_in_repo=path) for path in report.replaced]
        try:
            with ExitStack() as opened, hub_errors(f"the model {name}", _ADVICE):
                for done, path in enumerate(report.written):
                    yield Progress(done=done, total=len(report.written), unit="files", note="uploading")
                    # open files, since for paths the library draws a progress bar even if standard error is no terminal
                    added = CommitOperationAdd(path_in_repo=path, path_or_fileobj=opened.enter_context((folder / path).open("rb")))
                    self._api.preupload_lfs_files(name, [added], create_pr=True, free_memory=False)
                    operations.append(added)
                yield Progress(done=0, total=0, unit="", note="opening the pull request")
                made = self._api.create_commit(
                    name,
                    operations,
                    commit_message=f"{_TITLE} {share(1 - report.bytes_after / report.bytes_before)} fewer bytes",
                    commit_description="Every value is the same, bit for bit: `mantissa shrink` has read the result back and compared. "
                    f"{report.bytes_before:,} bytes of tensors become {report.bytes_after:,}.",
                    create_pr=True,
                    parent_commit=report.commit,
                )
        except Conflict:
            raise InvalidRequest(f"{name} has changed since it was read, so no pull request was opened: start again.") from None
        except HubUnreachable:
            again = f"Otherwise mantissa shrink and hf upload {name} FOLDER --create-pr do the same."
            raise HubUnreachable(f"The Hub failed before it confirmed a pull request: look whether {name} has it. {again}") from None
        yield str(made.pr_url)


def shrink_and_open(model: str, commit: str, most: int, largest: int, token: str) -> Iterator[Progress | tuple[str, ShrinkReport]]:
    """Shrink this commit of ``model`` into a temporary folder and open a pull request with the result.

    Yields progress, then its address and what was written. most: bytes of tensors that the result may have; if values need more, nothing is
    opened. largest: bytes of the checkpoint. Raises InvalidRequest if the commit is not the newest or there is such a pull request,
    LimitExceeded, and the errors of `shrink` and of `PullRequest.open`.
    """
    access, request = Access(token=token), PullRequest(model, token)
    with closing(open_hub(model, None, access)) as head:
        if head.commit != commit:
            raise InvalidRequest(f"{model} has changed since this result, so no pull request was opened: look at the newest commit first.")
    request.check_new()
    with TemporaryDirectory(prefix="mantissa-") as folder:
        try:
            for item in shrink(f"{model}@{commit}", f"{folder}/copy", access=access, changed_only=True, largest=largest):
                if isinstance(item, Progress):
                    yield item
        except (InvalidRequest, ModelTooLarge):  # which name a folder of the server
            raise LimitExceeded("The disk of this app has no room for the copy now: try again later, or use the command.") from None
        assert isinstance(item, ShrinkReport)
        if not item.written or item.bytes_after > most:
            left = f"{item.bytes_after:,} bytes would be left, not {most:,}, since some values need more bits"
            raise UnsupportedWeights(f"No pull request was opened: {left}. Check reads all of it, and offers what is possible.")
        for step in request.open(item):
            yield step if isinstance(step, Progress) else (step, item)
