"""Reads and writes the dataset on the Hub, with the token of the server: it is sent to the Hub only, and is in no message and no file."""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from analyzers.core import limits
from analyzers.core.errors import AccessDenied, CheckpointNotFound, HubError, HubUnreachable
from components.library.folder import LISTED, NAMES
from components.library.items import Identity

CARD = "README.md"
_TEMPLATE = Path(__file__).with_name("card.md")
_FAILURES, _PAUSE = (500, 502, 503, 504), 0.1


class Conflict(HubError):
    """Somebody else committed in the meantime: read again."""


class Dataset:
    """The dataset repository ``name``. Methods raise AccessDenied, CheckpointNotFound, HubUnreachable."""

    def __init__(self, name: str, token: str | None) -> None:
        from huggingface_hub import HfApi, constants

        use_bounded_client()
        self.name, self.may_write = name, token is not None
        self._api: Any = HfApi(endpoint=constants.ENDPOINT, token=token or False)

    def owner(self) -> Identity:
        """Return the identity of the token's owner."""
        with hub_errors(f"the dataset {self.name}"):
            account = self._api.whoami()
            return Identity.login(account["name"], tuple(each["name"] for each in account.get("orgs", ())))

    def check_writable(self) -> None:
        """Raise an error unless the token may write."""
        if not self.may_write:
            raise AccessDenied(f"Nothing is published to the dataset {self.name}: set MANTISSA_TOKEN to a token that may write it.")
        with hub_errors(f"the dataset {self.name}"):
            self._api.auth_check(self.name, repo_type="dataset", write=True)

    def head(self) -> str:
        """Return the newest commit; the repository is created, public, if there is none."""
        from huggingface_hub.errors import RepositoryNotFoundError

        with hub_errors(f"the dataset {self.name}"):
            try:
                return str(self._api.dataset_info(self.name, expand=["sha"]).sha)
            except RepositoryNotFoundError:
                if not self.may_write:
                    raise
                self._api.create_repo(self.name, repo_type="dataset", private=False, exist_ok=True)
                return str(self._api.dataset_info(self.name, expand=["sha"]).sha)

    def files(self, commit: str) -> dict[str, int]:
        """Return the sizes of the card and of the files with labels, rows and names of what is hidden, by path."""
        with hub_errors(f"the dataset {self.name}"):
            top = list(self._api.list_repo_tree(self.name, repo_type="dataset", revision=commit))
            entries = [entry for entry in top if entry.path == CARD]
            for folder in [entry.path for entry in top if entry.path in LISTED]:
                entries += self._api.list_repo_tree(self.name, folder, repo_type="dataset", revision=commit)
            sizes = {entry.path: getattr(entry, "size", None) for entry in entries}
            return {path: size for path, size in sizes.items() if size is not None and (path == CARD or NAMES.fullmatch(path))}

    def read(self, paths: list[str], commit: str) -> Iterator[tuple[str, bytes]]:
        """Yield the contents of files, several at a time."""
        with ThreadPoolExecutor(8) as pool:
            try:
                yield from zip(paths, pool.map(lambda path: self.read_one(path, commit, limits.INDEX_BYTES), paths), strict=True)
            finally:
                pool.shutdown(cancel_futures=True)

    def read_one(self, path: str, commit: str, most: int) -> bytes:
        """Return the content of a file, of at most ``most`` bytes."""
        from huggingface_hub import get_session, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

        address = hf_hub_url(self.name, path, repo_type="dataset", revision=commit, endpoint=self._api.endpoint)
        content = bytearray()
        with hub_errors(f"the dataset {self.name}"):
            with get_session().stream("GET", address, headers=build_hf_headers(token=self._api.token)) as response:
                if response.is_error:
                    response.read()
                hf_raise_for_status(response)
                for part in response.iter_bytes():
                    content += part
                    if len(content) > most:
                        raise HubUnreachable(f"The dataset {self.name} has a file that is too large: {path[:100]}.")
            return bytes(content)

    def commit(self, message: str, files: Mapping[str, bytes], parent: str) -> str:
        """Add files in one commit on ``parent``; return the new commit. After an error it may exist nevertheless. Raises Conflict too."""
        return str(self._commit(message, files, parent_commit=parent).oid)

    def card(self) -> bytes:
        """Return the card of a new dataset."""
        return _TEMPLATE.read_text(encoding="utf-8").replace("{name}", self.name).encode()

    def _commit(self, message: str, files: Mapping[str, bytes], **options: Any) -> Any:
        from huggingface_hub import CommitOperationAdd

        operations = [CommitOperationAdd(path_in_repo=path, path_or_fileobj=content) for path, content in files.items()]
        with hub_errors(f"the dataset {self.name}"):
            return self._api.create_commit(self.name, operations, commit_message=message, repo_type="dataset", **options)


@contextmanager
def hub_errors(what: str, advice: str = "check that the token (MANTISSA_TOKEN or HF_TOKEN) may write it") -> Iterator[None]:
    """Convert failures on a repository to our errors. what: names it; advice: after a refusal."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        yield
    except (httpx2.HTTPError, OSError, ValueError, KeyError, RuntimeError) as error:  # the last: replies in an unknown form, failed uploads
        status = error.response.status_code if isinstance(error, HfHubHTTPError) and error.response is not None else 0
        if status in (409, 412):
            raise Conflict(f"Somebody else has changed {what}.") from None
        if isinstance(error, RepositoryNotFoundError) or status == 404:
            raise CheckpointNotFound(f"{what[:1].upper()}{what[1:]} was not found on the Hub, or is not visible: {advice}.") from None
        if status in (401, 403):
            raise AccessDenied(f"The Hub refuses to open or write {what}: {advice}.") from None
        raise HubUnreachable(f"The Hub cannot be reached, or fails{f' (status {status})' if status else ''}; it is tried again.") from None


@cache
def use_bounded_client() -> None:
    """Give every request of huggingface_hub in this process HUB_TIMEOUT_SECONDS, where it waits without limit, and a second try.

    huggingface_hub does not retry a commit. A request is not retried if the reply says how long to wait, nor if it opens a pull request:
    that may be open already.
    """
    import httpx2
    from huggingface_hub import get_session, set_client_factory

    class Transport(httpx2.HTTPTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            response = super().handle_request(request)
            asks_to_wait = "retry-after" in response.headers  # the readers of checkpoints wait, and try again themselves
            if response.status_code in _FAILURES and not asks_to_wait and b"create_pr" not in request.url.query:
                response.close()
                time.sleep(_PAUSE)
                response = super().handle_request(request)
            return response

    hooks = get_session().event_hooks
    options: dict[str, Any] = {"event_hooks": hooks, "follow_redirects": True, "timeout": float(limits.HUB_TIMEOUT_SECONDS)}
    set_client_factory(lambda: httpx2.Client(transport=Transport(), **options))
