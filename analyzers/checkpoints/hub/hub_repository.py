"""Reads checkpoints on the Hugging Face Hub by range: nothing is downloaded whole, nothing is written to disk.

A name and revision are resolved to the canonical repository and a commit once, and every later read names that commit.
The token goes to the Hub alone, never to the storage it redirects to. The other modules do the reading:
`ranges` reads files, `replies` interprets replies, `transfers` makes one exchange in bounded time.
"""

import re
import threading
import unicodedata
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from analyzers.checkpoints.repository import Access
from analyzers.core import limits
from analyzers.core.errors import (
    AccessDenied,
    CheckpointNotFound,
    HiddenRepository,
    HubError,
    HubMisbehaved,
    InvalidCheckpoint,
    InvalidReference,
    InvalidRequest,
    LimitExceeded,
)

from .ranges import HubFile, HubLocation
from .replies import Hub, as_unreachable
from .transfers import Transfers

_ID = re.compile(r"(?!.*(?:\.\.|--))[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LICENCE = re.compile(r"[\w.-]{1,60}", re.ASCII)
_SEARCH_SECONDS = 3
_SEARCH_LENGTH = 100
_PAGE = 500  # most models in one page of a list


class HubRepository:
    """A model repository at one commit (see `repository.Repository`), opened by `open_hub`."""

    parallel_reads = limits.HUB_PARALLEL_READS
    range_requests = limits.RANGE_REQUESTS

    def __init__(self, hub: Hub, ref: str, commit: str, public: bool, sizes: Mapping[str, int | None], licence: str = "") -> None:
        self.ref = ref
        self.commit = commit
        self.public = public
        self.files: Mapping[str, int] = _Files(sizes, self._size)
        self._hub = hub
        self._sizes = sizes
        self._licence = licence
        self._lock = threading.Lock()
        self._locations: dict[str, HubLocation] = {}
        self._transfers = Transfers()
        self._opened: weakref.WeakSet[HubFile] = weakref.WeakSet()

    def open(self, path: str) -> HubFile:
        """Open one of ``files``, without a request. Raises CheckpointNotFound if there is no such file."""
        location = self._location(path)
        file = HubFile(location, self.files[path])
        with self._lock:
            self._transfers.check()
            self._opened.add(file)
        return file

    def close(self) -> None:
        """Stop all reads and close all files. Idempotent."""
        with self._lock:
            self._transfers.close()
            opened = list(self._opened)
        for file in opened:
            file.close()

    def _location(self, path: str) -> HubLocation:
        if path not in self._sizes:
            raise CheckpointNotFound(f"{self.ref} has no file {path[:200]!r} at commit {self.commit[:8]}.")
        with self._lock:
            location = self._locations.get(path)
            if location is None:
                refusal = _refusal(f"{path} of {self.ref}", self.commit, self.ref, self._licence)
                location = HubLocation(self._hub, self.ref, self.commit, path, self._sizes[path], refusal)
                self._locations[path] = location
            return location

    def _size(self, path: str) -> int:
        return self._location(path).size(self._transfers)


class _Files(Mapping[str, int]):
    """A mapping from path to size; a size missing from the Hub's list is requested on first access."""

    def __init__(self, sizes: Mapping[str, int | None], request: Callable[[str], int]) -> None:
        self._sizes = sizes
        self._request = request

    def __getitem__(self, path: str) -> int:
        known = self._sizes[path]
        return self._request(path) if known is None else known

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, path: object) -> bool:
        return path in self._sizes


def open_hub(name: str, revision: str | None, access: Access, kind: Literal["models", "datasets"] = "models") -> HubRepository:
    """Resolve a repository and a revision (branch, tag or commit; None for main) on the Hub, with one request.

    kind: a dataset's ``ref`` is ``datasets/org/name``, as in its address.
    Raises InvalidReference for an invalid model id; HiddenRepository for an unknown or private repository;
    CheckpointNotFound for an unknown revision; AccessDenied for a token that is refused; InvalidCheckpoint for file names that are not safe
    relative paths; LimitExceeded for more than REPOSITORY_FILES files; HubError and its subclasses.
    """
    if not _ID.fullmatch(name):
        raise InvalidReference(f"{name[:100]!r} is not a model id; expected org/name, as in the address of its page on the Hub.")
    if revision is not None and (revision in ("", ".", "..") or len(revision) > limits.REFERENCE_LENGTH or not revision.isprintable()):
        raise CheckpointNotFound(f"{name} has no revision {revision[:100]!r}; give a branch, a tag or a commit.")
    hub = Hub(access.token)
    at = "" if revision is None else f"/revision/{quote(revision, safe='')}"
    info, _ = hub.get(Transfers(), f"{hub.url}/api/{kind}/{name}{at}?blobs=true", _refusal(name, revision))
    ref, commit = _field(info, "id", str), _field(info, "sha", str)
    if not (_ID.fullmatch(ref) and _COMMIT.fullmatch(commit)):
        raise HubMisbehaved(f"The Hub describes {name} with an invalid id or commit; try again later.")
    if revision is not None and _COMMIT.fullmatch(revision) and commit != revision:
        raise HubMisbehaved(f"The Hub answers with another commit of {name} than requested; try again later.")
    if info.get("disabled"):
        raise AccessDenied(f"{ref} has been disabled on the Hub.")
    public = info.get("private") is False and info.get("gated") is False
    ref = ref if kind == "models" else f"{kind}/{ref}"
    return HubRepository(hub, ref, commit, public, _sizes(ref, _field(info, "siblings", list)), _licence(info))


def cached_snapshot(name: str, revision: str | None, kind: Literal["models", "datasets"] = "models") -> Path | None:
    """Return the folder of a repository's snapshot in this machine's Hub cache, without network access; None if there is none."""
    try:
        return Path(snapshot_download(name, repo_type=kind.removesuffix("s"), revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, OSError):
        return None


def is_public(name: str) -> bool:
    """Return whether everybody can read a model: it exists, and is neither private, gated nor disabled. One request, without a token.

    Raises HubUnreachable for any failure, and after 3 seconds.
    """
    hub = Hub(None)
    try:
        info, _ = hub.get(Transfers(), f"{hub.url}/api/models/{name}", _refusal(name, None), seconds=_SEARCH_SECONDS, tries=False)
    except HiddenRepository:
        return False
    except (HubError, CheckpointNotFound, AccessDenied) as error:
        raise as_unreachable(error) from None
    return isinstance(info, dict) and info.get("private") is False and info.get("gated") is False and not info.get("disabled")


def search_models(text: str, limit: int = 8) -> list[str]:
    """Return the ids of at most ``limit`` public models that the Hub finds for ``text``, best first, within 3 seconds.

    Asks without a token. Raises HubUnreachable for any failure.
    """
    hub = Hub(None)
    query = urlencode({"search": text[:_SEARCH_LENGTH], "limit": limit}, errors="replace")
    try:
        refusal = _refusal("The list of models", None)
        found, _ = hub.get(Transfers(), f"{hub.url}/api/models?{query}", refusal, seconds=_SEARCH_SECONDS, tries=False)
    except (HubError, CheckpointNotFound, AccessDenied) as error:
        raise as_unreachable(error) from None
    ids = [entry.get("id") for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    return [name for name in ids if isinstance(name, str) and _ID.fullmatch(name)][:limit]


def list_models(kind: str, text: str, limit: int, access: Access) -> list[str]:
    """Return the ids of the first ``limit`` models that a "search" for ``text`` finds, or that the "org" (or user) ``text`` has.

    In the Hub's order, page by page. Raises InvalidRequest for an impossible name, and HubError and its subclasses.
    """
    if len(text) > _SEARCH_LENGTH or not text.isprintable():
        raise InvalidRequest(f"{text[:60]!r} cannot be searched for: give at most {_SEARCH_LENGTH} printable characters.")
    if kind == "org" and not _ID.fullmatch(text.replace("/", "-")):
        raise InvalidRequest(f"{text[:60]!r} is not the name of an organisation; give it as in its address on the Hub.")
    hub = Hub(access.token)
    query = urlencode({"author" if kind == "org" else "search": text, "limit": min(limit, _PAGE)}, errors="replace")
    url: str | None = f"{hub.url}/api/models?{query}"
    found: dict[str, None] = {}
    while url is not None and len(found) < limit:
        entries, url = hub.get(Transfers(), url, _refusal(f"The list of models of {text}", None))
        if not isinstance(entries, list):
            raise HubMisbehaved("The Hub's list of models has an unknown form; try again later.")
        ids = [entry.get("id") for entry in entries if isinstance(entry, dict)]
        new = dict.fromkeys(name for name in ids if isinstance(name, str) and _ID.fullmatch(name) and name not in found)
        if not new:  # pages without new models might never end
            break
        found |= new
    return list(found)[:limit]


def _refusal(name: str, revision: str | None, repository: str = "", licence: str = "") -> dict[str, str]:
    """Return the sentences for `replies.refused`. name: of the repository or file; repository: the one that holds the file."""
    repository = repository or name
    accept = f"accept its licence{f' ({licence})' if licence else ''} at {str(constants.ENDPOINT).rstrip('/')}/{repository}"
    return {
        "missing": f"{name} was not found on the Hub, or is private: check the name, or read it with your own login or token.",
        "revision": f"{name} has no revision {(revision or 'main')[:100]!r} on the Hub; give a branch, a tag or a commit.",
        "gated": f"{repository} is gated: {accept}, then read it with your own login or token.",
        "closed": f"{repository} is gated, and your login or token may not read it: {accept}, or wait for its authors to let you in.",
        "disabled": f"{name} is disabled on the Hub, or not open to you.",
    }


def _licence(info: Mapping[str, Any]) -> str:
    """Return the name of the licence in the Hub's description of a repository, or an empty text."""
    card = info.get("cardData")
    names = [card.get("license_name"), card.get("license")] if isinstance(card, dict) else []
    return next((name for name in names if isinstance(name, str) and _LICENCE.fullmatch(name)), "")


def _field(info: Any, name: str, kind: type) -> Any:
    value = info.get(name) if isinstance(info, dict) else None
    if not isinstance(value, kind):
        raise HubMisbehaved("The Hub's description of the repository has an unknown form; try again later.")
    return value


def _sizes(ref: str, siblings: list[Any]) -> dict[str, int | None]:
    """Return path -> size of each listed file, validated."""
    if len(siblings) > limits.REPOSITORY_FILES:
        raise LimitExceeded(f"{ref} has more than {limits.REPOSITORY_FILES:,} files.")
    sizes: dict[str, int | None] = {}
    for sibling in siblings:
        path, size = _field(sibling, "rfilename", str), sibling.get("size")
        if not _is_safe(path) or path in sizes:
            raise InvalidCheckpoint(f"{ref} lists a file named {path[:100]!a}, which is not a safe relative path; it cannot be read.")
        if size is not None and (type(size) is not int or not 0 <= size < 1 << 62):
            raise HubMisbehaved(f"The Hub gives an impossible length for {path[:100]} of {ref}; try again later.")
        sizes[path] = size
    return sizes


def _is_safe(path: str) -> bool:
    steps = path.split("/")
    return (
        len(path) <= 1000
        and all(step not in ("", ".", "..") for step in steps)
        and "\\" not in path
        and not any(unicodedata.category(character) in ("Cc", "Cs") for character in path)
    )
