"""Files of public repositories on the Hub, downloaded into the cache that huggingface_hub shares between all programs.

Only what anybody may read goes there: the cache hands a file to whoever asks for it.
"""

import queue
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import httpx2
from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
from tqdm import tqdm

from ..errors import AccessDenied, HubUnreachable, LimitExceeded
from .reference import quoted

_LOOK_SECONDS = 0.2
_STOP_SECONDS = 5


def cached(ref: str, commit: str, path: str) -> Path | None:
    """Where the cache has a file of a repository at a commit, None if it has not."""
    found = try_to_load_from_cache(ref, path, revision=commit)
    return Path(found) if isinstance(found, str) else None


def cache_folder() -> Path:
    """Where the cache is, or the nearest folder above that exists already."""
    folder = Path(constants.HF_HUB_CACHE)
    return next(place for place in (folder, *folder.parents) if place.exists())


def download(ref: str, commit: str, sizes: Mapping[str, int], token: str | bool | None) -> Iterator[int]:
    """Download those of the files (path -> bytes) that the cache lacks; yields how many bytes of all of them are there.

    Closing the iterator stops it. Raises AccessDenied, LimitExceeded for a full disk, HubUnreachable.
    """
    done = sum(size for path, size in sizes.items() if cached(ref, commit, path) is not None)
    yield done
    for path, size in sizes.items():
        if cached(ref, commit, path) is None:
            for count in _download(ref, commit, path, False if token is None else token):
                yield done + min(count, size)
            done += size
    yield done


class _Stopped(BaseException):
    """Nobody waits for the file any more."""


class _Bar(tqdm):  # type: ignore[misc]
    """What huggingface_hub takes for a progress bar: counts, draws nothing, and stops the download when told to."""

    def __init__(self, counts: "queue.SimpleQueue[int | None]", stop: threading.Event, **settings: Any) -> None:
        super().__init__(**{**settings, "disable": True})
        self._counts, self._stop = counts, stop

    def update(self, n: float | None = 1) -> None:
        """Count ``n`` more bytes. Raises _Stopped."""
        if self._stop.is_set():
            raise _Stopped
        self.n += n or 0
        self._counts.put(int(self.n))


def _download(ref: str, commit: str, path: str, token: str | bool) -> Iterator[int]:
    counts: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    stop = threading.Event()
    failed: list[BaseException] = []

    def bar(**settings: Any) -> _Bar:
        return _Bar(counts, stop, **settings)

    def work() -> None:
        try:
            hf_hub_download(ref, path, revision=commit, token=token, tqdm_class=cast(type[Any], bar))
        except BaseException as error:
            failed.append(error)
        counts.put(None)

    thread = threading.Thread(target=work, name="download", daemon=True)
    thread.start()
    try:
        most = 0
        while True:
            try:
                count = counts.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                yield most
                continue
            if count is None:
                break
            if count > most:
                most = count
                yield most
    finally:
        stop.set()
        thread.join(_STOP_SECONDS)
    if failed:
        raise _meaning(failed[0], path, ref) from None


def _meaning(error: BaseException, path: str, ref: str) -> BaseException:
    """A failure of the client as one of ours; what is none of its failures stays what it is."""
    name = f"{quoted(path, 100)} of {ref}"
    if isinstance(error, (GatedRepoError, RepositoryNotFoundError)):
        return AccessDenied(f"{name} is gated or closed to you; ask for access on its page on the Hub.")
    if isinstance(error, OSError) and error.errno == 28:
        return LimitExceeded(f"The disk is full: {name} does not fit into the cache of huggingface_hub.")
    if isinstance(error, (HfHubHTTPError, httpx2.HTTPError, OSError)):
        return HubUnreachable(f"{name} could not be downloaded from the Hub; try again later.")
    return error
