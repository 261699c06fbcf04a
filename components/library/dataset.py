"""Accesses the dataset repository on the Hub: files are read by range, commits are made on the parent that was read.

By default, huggingface_hub waits for a silent Hub without limit, and before a retry for as long as the Hub asks, which cannot be cancelled.
This module gives every request a timeout and, while this thread writes, raises refusals instead of waiting.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from analyzers.checkpoints.repository import Access
from analyzers.core import limits
from analyzers.core.errors import AccessDenied, CheckpointNotFound, HubError, HubMisbehaved, HubThrottled, HubUnreachable, TokenRefused

if TYPE_CHECKING:
    from analyzers.checkpoints.hub.hub_repository import HubRepository

_TOKEN_ADVICE = "check that the token (MANTISSA_TOKEN or HF_TOKEN) may write it"  # noqa: S105 - advice


_PASSING = (408, 429, 500, 502, 503, 504)
_publishing = threading.local()


class Refused(Exception):
    """A status after which huggingface_hub would wait and try again."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers


class Conflict(HubError):
    """Somebody else committed in the meantime: read again."""


class Retry(HubError):
    """A temporary failure, or a lost answer. wait: the seconds that the Hub asks to wait, None if it does not say."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


class Dataset:
    """A dataset repository. token: the server's, from its environment; sent to the Hub only, and in no message and no file.

    refused: the Hub refused the token in the last `head`, which was read without it.
    """

    def __init__(self, name: str, token: str | None) -> None:
        self.name = name
        self.refused = False
        self._token = token
        use_bounded_client()

    def __repr__(self) -> str:  # a token must not end up in a log
        return f"Dataset({self.name!r})"

    def head(self) -> "HubRepository":
        """Open the repository at the newest commit of main; the caller closes it. Raises CheckpointNotFound, AccessDenied, HubError."""
        from analyzers.checkpoints.hub.hub_repository import open_hub

        with reading(self.name):
            try:
                head = open_hub(self.name, None, Access(token=self._token), kind="datasets")
                self.refused = False
                return head
            except TokenRefused:  # everybody may read a public dataset; the token's fault is reported when it is needed for writing
                self.refused = True
                return open_hub(self.name, None, Access(), kind="datasets")

    def check_writable(self) -> None:
        """Ask the Hub whether the token may write, without changing anything. Raises AccessDenied, CheckpointNotFound, HubError."""
        from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

        with as_ours(self.name):
            try:
                self._api().auth_check(self.name, repo_type="dataset", write=True)
            except HfHubHTTPError as error:  # 404 although the repository exists: a mirror that does not implement this request
                if isinstance(error, RepositoryNotFoundError) or error.response.status_code != 404:
                    raise

    def create(self) -> None:
        """Create the repository, public, unless it exists. Raises the errors of `commit`."""
        with as_ours(self.name):
            self._api().create_repo(self.name, repo_type="dataset", private=False, exist_ok=True)

    def commit(self, message: str, files: Mapping[str, bytes], parent: str | None, delete: tuple[str, ...] = ()) -> str:
        """Add and delete files in one commit on ``parent``, or on the branch's head if None; return the new commit.

        Raises Conflict if the branch has another head, Retry for a temporary failure (the commit may exist nevertheless: read again), and
        AccessDenied, CheckpointNotFound or HubMisbehaved for a permanent one.
        """
        return str(self._commit(message, files, delete, parent_commit=parent).oid)

    def pull_request(self, message: str, files: Mapping[str, bytes]) -> str:
        """Open a pull request with these files; return its address."""
        return str(self._commit(message, files, (), create_pr=True).pr_url)

    def _commit(self, message: str, files: Mapping[str, bytes], delete: tuple[str, ...], **options: Any) -> Any:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        operations: list[Any] = [CommitOperationAdd(path_in_repo=path, path_or_fileobj=content) for path, content in files.items()]
        operations += [CommitOperationDelete(path_in_repo=path) for path in delete]
        api, requested = self._api(), {"create_pr": options.get("create_pr")}
        with as_ours(self.name):
            for operation in operations[: len(files)]:  # one by one, since it sends several from its own threads
                api.preupload_lfs_files(self.name, [operation], repo_type="dataset", free_memory=False, **requested)
            return api.create_commit(self.name, operations, commit_message=message, repo_type="dataset", **options)

    def _api(self) -> Any:
        from huggingface_hub import HfApi, constants

        return HfApi(endpoint=constants.ENDPOINT, token=self._token or False)


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Convert errors of reading this dataset to the same errors with a sentence for its operator; the original ones speak of models."""
    ours = f"The dataset {name} (MANTISSA_DATASET) of this app"
    try:
        yield
    except CheckpointNotFound:
        raise CheckpointNotFound(
            f"The dataset {name} was not found on the Hub, or is private: check MANTISSA_DATASET, or set MANTISSA_TOKEN to a token that "
            "may read it."
        ) from None
    except AccessDenied:
        raise AccessDenied(f"{ours} cannot be read: check that it is not gated or disabled, and that MANTISSA_TOKEN may read it.") from None
    except HubThrottled:
        raise HubThrottled(f"{ours} cannot be read now: the Hub receives too many requests; it is tried again.") from None
    except HubError as error:
        why = str(error).partition(";")[0].rstrip(".")
        raise type(error)(f"{ours} cannot be read. {why}; it is tried again.") from None


@contextmanager
def as_ours(name: str, kind: str = "dataset", advice: str = _TOKEN_ADVICE) -> Iterator[None]:
    """Send each request of this thread once, and convert failures on a repository of this kind to our errors. advice: after a refusal."""
    import httpx2
    from huggingface_hub.errors import BadRequestError, HfHubHTTPError, RepositoryNotFoundError

    try:
        with refusals_raised():
            yield
    except Refused as error:
        raise _passing(f"the {kind} {name}", error) from None
    except (httpx2.HTTPError, OSError) as error:
        status = error.response.status_code if isinstance(error, HfHubHTTPError) and error.response is not None else 0
        if status in (409, 412):
            raise Conflict(f"The {kind} {name} was changed by somebody else; trying again.") from None
        if isinstance(error, RepositoryNotFoundError) or status == 404:
            raise CheckpointNotFound(f"The {kind} {name} was not found on the Hub, or is not visible: {advice}.") from None
        if status in (401, 403):
            raise AccessDenied(f"The Hub refuses to write the {kind} {name}: {advice}.") from None
        if isinstance(error, BadRequestError) or 400 <= status < 500:
            raise HubMisbehaved(f"The Hub does not accept a commit to the {kind} {name} (status {status}).") from None
        raise Retry("The Hub cannot be reached, or closed the connection; trying again.") from None
    except (ValueError, RuntimeError, KeyError):  # replies in an unknown form, and failed uploads
        raise Retry("The Hub's answer cannot be read; trying again.") from None


def _passing(what: str, error: Refused) -> Retry:
    from analyzers.checkpoints.hub.replies import retry_after

    if error.status == 429:
        return Retry(f"The Hub receives too many requests for {what}; waiting as long as it asks.", retry_after(error.headers))
    return Retry(f"The Hub is failing (status {error.status}); trying again.", retry_after(error.headers))


def passes(error: HubError) -> bool:
    """Return whether another try may succeed."""
    return isinstance(error, Conflict | Retry | HubUnreachable | HubThrottled)


@cache
def use_bounded_client() -> None:
    """Give every request of huggingface_hub in this process HUB_TIMEOUT_SECONDS, unless it sets another timeout."""
    import httpx2
    from huggingface_hub import get_session, set_client_factory

    theirs = get_session().event_hooks

    def bounded() -> httpx2.Client:
        hooks = {"request": theirs["request"], "response": [*theirs["response"], _refuse]}
        return httpx2.Client(event_hooks=hooks, follow_redirects=True, timeout=float(limits.HUB_TIMEOUT_SECONDS))

    set_client_factory(bounded)


@contextmanager
def refusals_raised() -> Iterator[None]:
    """Make requests of this thread raise Refused inside the block; other threads' requests, such as downloads, are retried as usual."""
    _publishing.active = True
    try:
        yield
    finally:
        _publishing.active = False


def _refuse(response: Any) -> None:
    if getattr(_publishing, "active", False) and response.status_code in _PASSING:
        raise Refused(response.status_code, dict(response.headers))
