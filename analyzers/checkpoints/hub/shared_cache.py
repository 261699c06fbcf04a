"""Downloads files of public repositories on the Hub into the cache that huggingface_hub shares between all programs.

Only public files are downloaded: the cache serves a file to every program, with or without a token.
"""

import errno
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
from tqdm import tqdm

from analyzers.checkpoints.hub.replies import meaning
from analyzers.core.errors import LimitExceeded

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


class _Abandoned(BaseException):
    """Nobody waits for the download. Not an Exception, after which the library would try again."""


def _download(ref: str, commit: str, path: str, token: str | bool) -> Iterator[int]:
    """Download one file in a thread, as the library cannot be interrupted; yield the number of bytes several times a second."""
    abandoned, finished, count = threading.Event(), Future[str](), 0

    class Bar(tqdm):  # type: ignore[misc]
        """A progress bar that draws nothing, counts bytes, and ends an abandoned download."""

        def __init__(self, **settings: Any) -> None:
            super().__init__(**{**settings, "disable": True})

        def update(self, n: float | None = 1) -> None:
            nonlocal count
            if abandoned.is_set():
                raise _Abandoned
            self.n += n or 0
            count = int(self.n)

    def work() -> None:
        try:
            finished.set_result(hf_hub_download(ref, path, revision=commit, token=token, tqdm_class=Bar))
        except BaseException as error:  # raised in the consumer
            finished.set_exception(error)

    thread = threading.Thread(target=work, name="download", daemon=True)
    thread.start()
    try:
        yield 0
        while not wait([finished], _LOOK_SECONDS).done:
            yield count
        finished.result()
    except (httpx2.HTTPError, OSError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise LimitExceeded(f"The disk is full: {ref} does not fit into the cache of huggingface_hub.") from None
        raise meaning(error, ref) from None
    finally:
        abandoned.set()
        thread.join(_STOP_SECONDS)
