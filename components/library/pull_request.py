"""Opens a pull request on a model's repository with the files that `shrink` wrote, with the user's own token."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from analyzers.checkpoints import parse_reference, quoted
from analyzers.errors import AccessDenied, HubError, HubUnreachable, InvalidRequest
from analyzers.formatting import share
from analyzers.shrink import ShrinkReport
from components.library.contribute import logged_in
from components.library.dataset import Conflict, as_ours, passes, use_bounded_client


class PullRequest:
    """A pull request to be opened on the repository of ``model``.

    Raises InvalidRequest for anything but a model on the Hub, AccessDenied without a login, before anything is read or written.
    """

    def __init__(self, model: str) -> None:
        reference = parse_reference(model, local=True)
        if reference.kind != "hub" or reference.revision is not None:
            raise InvalidRequest(f"--pull-request needs a model of the Hub, without a revision, to open it on, not {quoted(model, 200)}.")
        token = logged_in()
        if not token:
            raise AccessDenied("--pull-request needs a login to the Hub: run hf auth login, or set HF_TOKEN.")
        self._token = token

    def open(self, report: ShrinkReport) -> str:
        """Open the pull request with the files that differ, on the commit that was shrunk; return its address.

        Raises InvalidRequest if the repository has changed in the meantime, AccessDenied, CheckpointNotFound, HubError.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants

        use_bounded_client()
        name, folder = report.model, Path(report.out)
        saved = share(1 - report.bytes_after / report.bytes_before)
        try:
            with ExitStack() as opened, as_ours(name, "model"):
                # open files, since for paths the library draws a progress bar even if standard error is no terminal
                files = {path: opened.enter_context((folder / path).open("rb")) for path in report.written}
                operations: list[Any] = [CommitOperationAdd(path_in_repo=path, path_or_fileobj=file) for path, file in files.items()]
                operations += [CommitOperationDelete(path_in_repo=path) for path in report.replaced]
                made = HfApi(endpoint=constants.ENDPOINT, token=self._token).create_commit(
                    name,
                    operations,
                    commit_message=f"Store the weights in {saved} fewer bytes",
                    commit_description="Every value is the same, bit for bit: `mantissa shrink` has read the result back and compared. "
                    f"{report.bytes_before:,} bytes of tensors become {report.bytes_after:,}.",
                    create_pr=True,
                    parent_commit=report.commit,
                )
        except Conflict:
            raise InvalidRequest(f"{name} has changed since it was read, so no pull request was opened: shrink it again.") from None
        except HubError as error:
            if passes(error):
                raise HubUnreachable(
                    f"The Hub failed, so no pull request was opened. {quoted(report.out, 200)} is complete: hf upload {name} and its path, "
                    "with --create-pr, tries again."
                ) from None
            raise
        return str(made.pr_url)
