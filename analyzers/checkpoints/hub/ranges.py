"""Reads files on the Hub by HTTP range from many threads: located once, every reply checked, cuts resumed."""

import threading
from functools import partial
from urllib.parse import quote

import httpx2
from huggingface_hub import constants, get_hf_file_metadata, get_session
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import build_hf_headers

from analyzers.checkpoints.hub.replies import Token, ask
from analyzers.core import limits
from analyzers.core.errors import HubMisbehaved, HubUnreachable, InvalidCheckpoint
from analyzers.core.terminal import plural

LIBRARY = "mantissa"
_PROGRESS_BYTES = 1 << 16  # a cut reply that had this much is continued, however often it is cut


class HubFile:
    """One file of a Hub repository at one commit (see `repository.RangeFile`).

    ref: the repository's address on the Hub, after the host; stopped: ends all reads once it is set.
    """

    def __init__(self, ref: str, commit: str, path: str, size: int, token: Token, stopped: threading.Event) -> None:
        self.path, self.size = path, size
        self._ref, self._commit, self._token, self._stopped = ref, commit, token, stopped
        self._lock = threading.Lock()
        self._location = ""  # the current address of the file's bytes: signed addresses expire
        self._etags: dict[str, str] = {}  # of the Hub under "", of each storage address under the address

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset`` on.

        Ends in bounded time: tries and waits are limited, and a cut reply is resumed where it stopped.
        Raises InvalidCheckpoint for a range outside the file, HubError and its subclasses, CheckpointNotFound, AccessDenied.
        """
        if offset < 0 or offset + len(buffer) > self.size:
            raise InvalidCheckpoint(f"{self.path} ends after {plural(self.size, 'byte')}, but more of it is needed; the file is truncated.")
        done = 0
        while done < len(buffer):
            done += ask(partial(self._read, offset + done, buffer[done:]), self._ref, self._stopped)

    def _read(self, start: int, buffer: memoryview) -> int:
        """Fill ``buffer`` as far as the reply reaches, and return the number of bytes."""
        end, count, location = start + len(buffer), 0, self._address()
        headers = build_hf_headers(token=self._token if _is_on_hub(location) else False, library_name=LIBRARY)
        headers |= {"accept-encoding": "identity", "range": f"bytes={start}-{end - 1}"}
        timeout = float(limits.HUB_TIMEOUT_SECONDS)
        enough = min(_PROGRESS_BYTES, len(buffer))
        try:
            with get_session().stream("GET", location, headers=headers, follow_redirects=False, timeout=timeout) as response:
                self._check(response, location, start, end)
                for piece in response.iter_raw():
                    if count + len(piece) > len(buffer):
                        raise HubMisbehaved(f"The Hub sends more of {self.path} than requested; try again later.")
                    buffer[count : count + len(piece)] = piece
                    count += len(piece)
                    if self._stopped.is_set():
                        return count
        except (httpx2.HTTPError, httpx2.StreamError, OSError):
            if count < enough:
                raise
        if count < enough:
            raise HubUnreachable(f"The Hub sends less of {self.path} than it promised; try again later.")
        return count

    def _address(self) -> str:
        """Return the address to read from; asks the Hub at the first call, and again once the address has expired."""
        with self._lock:
            if not self._location:
                url = f"{str(constants.ENDPOINT).rstrip('/')}/{self._ref}/resolve/{self._commit}/{quote(self.path)}"
                timeout = float(limits.HUB_TIMEOUT_SECONDS)
                found = get_hf_file_metadata(url, token=self._token, timeout=timeout, library_name=LIBRARY)
                if found.commit_hash not in (None, self._commit) or found.size != self.size:
                    raise HubMisbehaved(f"The Hub contradicts itself about {self.path}, its commit or its length; try again later.")
                self._unchanged("", found.etag)
                self._location = found.location
            return self._location

    def _check(self, response: httpx2.Response, location: str, start: int, end: int) -> None:
        """Refuse, before reading the body, any reply that is not exactly the requested range of the same file."""
        headers, status = response.headers, response.status_code
        if status in (301, 302, 303, 307, 308, 401, 403, 404, 410) and not _is_on_hub(location):
            with self._lock:
                self._location = "" if self._location == location else self._location
            raise HubUnreachable(f"The Hub's storage refuses to hand out {self.path}; try again later.")
        if status not in (200, 206):
            raise HfHubHTTPError("", response=response)
        length = str(end - start)
        if status == 206:
            right = headers.get("content-range", "").strip() == f"bytes {start}-{end - 1}/{self.size}"
        else:  # a server may ignore the range, which is harmless if the range is the whole file
            right = (start, end) == (0, self.size) and headers.get("content-length") == length
        if not right or headers.get("content-length", length) != length or headers.get("content-encoding", "identity") != "identity":
            raise HubMisbehaved(f"The Hub sends something else than bytes {start} to {end} of {self.path}; try again later.")
        self._unchanged(location.partition("?")[0], headers.get("etag"))

    def _unchanged(self, place: str, etag: str | None) -> None:
        """Raise HubMisbehaved if ``etag`` differs from the earlier one. A reply without an ETag passes."""
        if etag is not None and self._etags.setdefault(place, etag.removeprefix("W/").strip('"')) != etag.removeprefix("W/").strip('"'):
            raise HubMisbehaved(f"{self.path} changed on the Hub while it was read; try again.")


def _is_on_hub(location: str) -> bool:
    """Return whether an address has the Hub's own scheme, host and port: only there the token goes."""
    url, hub = httpx2.URL(location), httpx2.URL(constants.ENDPOINT)
    return (url.scheme, url.host, url.port) == (hub.scheme, hub.host, hub.port)
