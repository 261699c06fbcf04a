"""The dataset repository on the Hub: its files are read by range, its commits are made on the parent that was read."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from analyzers import limits
from analyzers.checkpoints.repository import Access
from analyzers.errors import AccessDenied, CheckpointNotFound, HubError, HubMisbehaved, HubThrottled, HubUnreachable

if TYPE_CHECKING:
    from analyzers.checkpoints.hub import HubRepository

_TOKEN_ADVICE = "check that the token (MANTISSA_TOKEN or HF_TOKEN) may write it"  # noqa: S105 - advice
_patience = threading.local()


class Conflict(HubError):
    """Somebody else committed meanwhile: read again."""


class Retry(HubError):
    """It failed in a way that passes, or its answer was lost. wait: seconds that the Hub asks for, None if it does not say."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


class Dataset:
    """A dataset repository. token: of the server, from its environment; goes to the Hub alone, and is in no message and no file."""

    def __init__(self, name: str, token: str | None) -> None:
        self.name = name
        self._token = token

    def __repr__(self) -> str:  # a token must not end up in a log
        return f"Dataset({self.name!r})"

    @contextmanager
    def head(self) -> "Iterator[HubRepository]":
        """The repository at the newest commit of main. Raises CheckpointNotFound, AccessDenied, HubError."""
        from analyzers.checkpoints.hub import open_hub

        repository = open_hub(self.name, None, Access(token=self._token), kind="datasets")
        try:
            yield repository
        finally:
            repository.close()

    def create(self) -> None:
        """Make the repository, public, where there is none. Raises as `commit`."""
        with _as_ours(self.name):
            self._api().create_repo(self.name, repo_type="dataset", private=False, exist_ok=True)

    def commit(self, message: str, files: Mapping[str, bytes], parent: str, delete: tuple[str, ...] = ()) -> str:
        """Add and delete files in one commit on ``parent``; returns the new commit.

        Raises Conflict where the branch has another head, Retry for what passes (it may have been committed all the same: read again), and
        AccessDenied, CheckpointNotFound or HubMisbehaved for what does not.
        """
        found = self._commit(message, files, delete, parent_commit=parent)
        return str(found.oid)

    def pull_request(self, message: str, files: Mapping[str, bytes]) -> str:
        """The same as a pull request; returns its address."""
        return str(self._commit(message, files, (), create_pr=True).pr_url)

    def _commit(self, message: str, files: Mapping[str, bytes], delete: tuple[str, ...], **options: Any) -> Any:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        operations: list[Any] = [CommitOperationAdd(path_in_repo=path, path_or_fileobj=content) for path, content in files.items()]
        operations += [CommitOperationDelete(path_in_repo=path) for path in delete]
        api, requested = self._api(), {"create_pr": options.get("create_pr")}
        with _as_ours(self.name):
            for operation in operations[: len(files)]:  # one by one: several are sent from threads of the client's own
                api.preupload_lfs_files(self.name, [operation], repo_type="dataset", free_memory=False, **requested)
            return api.create_commit(self.name, operations, commit_message=message, repo_type="dataset", **options)

    def _api(self) -> Any:
        from huggingface_hub import HfApi, constants

        return HfApi(endpoint=constants.ENDPOINT, token=self._token or False)


class _Refused(Exception):
    """A status that huggingface_hub would wait for, as long as the Hub likes, where nobody can stop it."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(status)
        self.status, self.headers = status, headers


def _impatient(response: Any) -> None:
    if getattr(_patience, "active", False) and response.status_code in (408, 429, 500, 502, 503, 504):
        raise _Refused(response.status_code, dict(response.headers))


def _in_time(request: Any) -> None:
    """The client waits without end for a Hub that is silent."""
    if getattr(_patience, "active", False):
        seconds = float(limits.HUB_TIMEOUT_SECONDS)
        request.extensions = {**request.extensions, "timeout": dict.fromkeys(("connect", "read", "write", "pool"), seconds)}


@contextmanager
def _as_ours(name: str) -> Iterator[None]:
    """Within it this thread's requests are sent once, a silence ends them, and what goes wrong is one of our errors.

    The hooks are on the session that all threads share, and do nothing to the others'.
    """
    import httpx2
    from huggingface_hub import get_session
    from huggingface_hub.errors import BadRequestError, HfHubHTTPError, RepositoryNotFoundError

    session = get_session()
    hooks = session.event_hooks
    if _impatient not in hooks["response"]:
        session.event_hooks = {"request": [*hooks["request"], _in_time], "response": [*hooks["response"], _impatient]}
    _patience.active = True
    try:
        yield
    except _Refused as error:
        raise _passing(name, error) from None
    except (httpx2.HTTPError, OSError) as error:
        status = error.response.status_code if isinstance(error, HfHubHTTPError) and error.response is not None else 0
        if status == 412 or status == 409:
            raise Conflict(f"{name} was changed by somebody else; trying again.") from None
        if isinstance(error, RepositoryNotFoundError) or status == 404:
            raise CheckpointNotFound(f"The dataset {name} was not found on the Hub, or may not be seen: {_TOKEN_ADVICE}.") from None
        if status in (401, 403):
            raise AccessDenied(f"The Hub refuses to write the dataset {name}: {_TOKEN_ADVICE}.") from None
        if isinstance(error, BadRequestError) or 400 <= status < 500:
            raise HubMisbehaved(f"The Hub does not take a commit to {name} (status {status}); what is not published stays here.") from None
        raise Retry("The Hub cannot be reached, or hung up; trying again.") from None
    except (ValueError, RuntimeError, KeyError):  # replies in a form that the client does not know, and uploads that failed
        raise Retry("The Hub's answer makes no sense; trying again.") from None
    finally:
        _patience.active = False


def _passing(name: str, error: _Refused) -> Retry:
    from analyzers.checkpoints.hub_replies import retry_after

    if error.status == 429:
        return Retry(f"The Hub gets too many requests for {name}; waiting as long as it asks.", retry_after(error.headers))
    return Retry(f"The Hub is failing (status {error.status}); trying again.", retry_after(error.headers))


def passes(error: HubError) -> bool:
    """Whether another try may do."""
    return isinstance(error, Conflict | Retry | HubUnreachable | HubThrottled)
