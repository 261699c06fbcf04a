"""Downloads files of public repositories on the Hub into the cache that huggingface_hub shares between all programs.

Only public files are downloaded: the cache serves a file to every program, with or without a token.
"""

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx2
from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
from tqdm import tqdm

from analyzers.checkpoints.hub.replies import meaning
from analyzers.core.errors import LimitExceeded
from analyzers.core.thread_calls import call_in_thread

_LOOK_SECONDS = 0.2
_STOP_SECONDS = 5


def cached(ref: str, commit: str, path: str) -> Path | None:
    """Return the cached file of a repository at a commit, or None."""
    found = try_to_load_from_cache(ref, path, revision=commit)
    return Path(found) if isinstance(found, str) else None


def cache_folder() -> Path:
    """Return the folder of the cache, or its nearest existing parent."""
    folder = Path(constants.HF_HUB_CACHE)
    return next(place for place in (folder, *folder.parents) if place.exists())


def download(ref: str, commit: str, sizes: Mapping[str, int], token: str | bool | None) -> Iterator[int]:
    """Download the files (path -> bytes) that the cache lacks; yield the number of bytes of all files present so far.

    Closing the iterator stops it. Raises AccessDenied, LimitExceeded for a full disk, HubError and its subclasses.
    """
    done = 0
    for path, size in sizes.items():
        if cached(ref, commit, path) is None:
            for count in _download(ref, commit, path, False if token is None else token):
                yield done + min(count, size)
        done += size
        yield done


class _Bar(tqdm):  # type: ignore[misc]
    """A progress bar for huggingface_hub that reports counts and draws nothing; it ends an abandoned download."""

    def __init__(self, tell: Callable[[int], None], **settings: Any) -> None:
        super().__init__(**{**settings, "disable": True})
        self._tell = tell

    def update(self, n: float | None = 1) -> None:
        """Count ``n`` more bytes."""
        self.n += n or 0
        self._tell(int(self.n))


def _download(ref: str, commit: str, path: str, token: str | bool) -> Iterator[int]:
    def work(tell: Callable[[int], None]) -> None:
        tell(0)
        hf_hub_download(ref, path, revision=commit, token=token, tqdm_class=cast(type[Any], partial(_Bar, tell)))

    try:
        with closing(call_in_thread(work, silence=_LOOK_SECONDS, patience=_STOP_SECONDS)) as counts:
            yield from counts
    except (httpx2.HTTPError, OSError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise LimitExceeded(f"The disk is full: {ref} does not fit into the cache of huggingface_hub.") from None
        raise meaning(error, ref) from None
