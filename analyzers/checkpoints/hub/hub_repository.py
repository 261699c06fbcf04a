"""Reads checkpoints on the Hugging Face Hub by range: nothing is downloaded whole, nothing is written to disk.

A name and revision are resolved to the canonical repository and a commit once, and every later read names that commit.
The token goes to the Hub alone, never to the storage it redirects to. `ranges` reads files, `replies` interprets failures.
"""

import re
import threading
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import HfApi, constants, get_session, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

from analyzers.checkpoints.hub.ranges import LIBRARY, HubFile
from analyzers.checkpoints.hub.replies import Token, ask, usable_token
from analyzers.checkpoints.reference import is_repository_id, is_revision
from analyzers.checkpoints.repository import Access
from analyzers.core import limits
from analyzers.core.errors import (
    AccessDenied,
    CheckpointError,
    CheckpointNotFound,
    HubError,
    HubMisbehaved,
    HubUnreachable,
    InvalidCheckpoint,
    InvalidReference,
    LimitExceeded,
)

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SEARCH_SECONDS = 3
_SEARCH_LENGTH = 100

Kind = Literal["models", "datasets"]


class HubRepository:
    """A repository at one commit (see `repository.Repository`), opened by `open_hub`. files: path -> bytes."""

    parallel_reads = limits.HUB_PARALLEL_READS
    range_requests = limits.RANGE_REQUESTS

    def __init__(self, ref: str, commit: str, public: bool, files: Mapping[str, int], token: Token) -> None:
        self.ref, self.commit, self.public, self.files = ref, commit, public, files
        self._token = token
        self._stopped = threading.Event()

    def open(self, path: str) -> HubFile:
        """Open one of ``files``, without a request. Raises CheckpointNotFound if there is no such file."""
        if path not in self.files:
            raise CheckpointNotFound(f"{self.ref} has no file {path[:200]!r} at commit {self.commit[:8]}.")
        return HubFile(self.ref, self.commit, path, self.files[path], self._token, self._stopped)

    def close(self) -> None:
        """Stop all reads of all files: at once where one waits, else with the next bytes or at its timeout. Idempotent."""
        self._stopped.set()


def open_hub(name: str, revision: str | None, access: Access, kind: Kind = "models") -> HubRepository:
    """Resolve a repository and a revision (branch, tag or commit; None for main) on the Hub, with one request.

    kind: a dataset's ``ref`` is ``datasets/org/name``, as in its address.
    Raises InvalidReference for an invalid model id; HiddenRepository for an unknown or private repository;
    CheckpointNotFound for an unknown revision; AccessDenied for a token that is refused; InvalidCheckpoint for file names that are not safe
    relative paths; LimitExceeded for more than REPOSITORY_FILES files; HubError and its subclasses.
    """
    if not is_repository_id(name):
        raise InvalidReference(f"{name[:100]!r} is not a model id; expected org/name, as in the address of its page on the Hub.")
    if revision is not None and not is_revision(revision):
        raise CheckpointNotFound(f"{name} has no revision {revision[:100]!r}; give a branch, a tag or a commit.")
    token = usable_token(access.token)
    api = HfApi(endpoint=str(constants.ENDPOINT).rstrip("/"), library_name=LIBRARY)
    call: Callable[..., Any] = api.model_info if kind == "models" else api.dataset_info
    timeout = float(limits.HUB_TIMEOUT_SECONDS)
    info = ask(lambda: call(name, revision=revision, files_metadata=True, timeout=timeout, token=token), name)
    pinned = revision if revision is not None and _COMMIT.fullmatch(revision) else info.sha
    if not is_repository_id(info.id) or not _COMMIT.fullmatch(str(info.sha)) or info.sha != pinned:
        raise HubMisbehaved(f"The Hub describes {name} with an invalid id, or another commit than requested; try again later.")
    if info.disabled:
        raise AccessDenied(f"{info.id} has been disabled on the Hub.")
    ref = info.id if kind == "models" else f"{kind}/{info.id}"
    public = info.private is False and info.gated is False
    return HubRepository(ref, info.sha, public, _sizes(ref, info.siblings), token)


def cached_snapshot(name: str, revision: str | None) -> Path | None:
    """Return the folder of a model's snapshot in this machine's Hub cache, without network access; None if there is none."""
    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, OSError):
        return None


def is_public(name: str) -> bool:
    """Return whether everybody can read a model. One request, without a token. Raises HubError and its subclasses."""
    try:
        return open_hub(name, None, Access()).public
    except CheckpointError:
        return False


def search_models(text: str, limit: int = 8) -> list[str]:
    """Return the ids of at most ``limit`` public models that the Hub finds for ``text``, best first, within 3 seconds.

    Asks without a token. Raises HubUnreachable for any failure.
    """
    query: dict[str, Any] = {"search": text[:_SEARCH_LENGTH].encode(errors="replace").decode(), "limit": limit}

    def call() -> list[str]:
        headers = build_hf_headers(token=False, library_name=LIBRARY)
        url = f"{constants.ENDPOINT}/api/models"
        response = get_session().get(url, params=query, headers=headers, timeout=_SEARCH_SECONDS, follow_redirects=False)
        hf_raise_for_status(response)
        return [entry["id"] for entry in response.json() if isinstance(entry, dict) and is_repository_id(entry.get("id"))]

    try:
        return ask(call, "The list of models", tries=1)[:limit]
    except (HubError, CheckpointError) as error:
        raise HubUnreachable(str(error)) from None


def _sizes(ref: str, siblings: Any) -> dict[str, int]:
    """Return path -> size of each listed file, validated."""
    if not isinstance(siblings, list):
        raise HubMisbehaved("The Hub's description of the repository has an unknown form; try again later.")
    if len(siblings) > limits.REPOSITORY_FILES:
        raise LimitExceeded(f"{ref} has more than {limits.REPOSITORY_FILES:,} files.")
    sizes: dict[str, int] = {}
    for sibling in siblings:
        path, size = sibling.rfilename, sibling.size
        if not isinstance(path, str) or not _is_safe(path) or path in sizes:
            raise InvalidCheckpoint(f"{ref} lists a file named {str(path)[:100]!a}, which is not a safe relative path; it cannot be read.")
        if type(size) is not int or not 0 <= size < 1 << 62:
            raise HubMisbehaved(f"The Hub gives an impossible length for {path[:100]} of {ref}; try again later.")
        sizes[path] = size
    return sizes


def _is_safe(path: str) -> bool:
    safe = all(step not in ("", ".", "..") for step in path.split("/")) and "\\" not in path and len(path) <= 1000
    return safe and not any(unicodedata.category(character) in ("Cc", "Cs") for character in path)
