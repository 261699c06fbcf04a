"""Reads files on the Hub by HTTP range from many threads: located once, every reply checked, cuts resumed."""

import threading
from collections.abc import Mapping
from urllib.parse import quote

import httpx2
from huggingface_hub import constants, get_hf_file_metadata, get_session
from huggingface_hub.utils import build_hf_headers

from analyzers.checkpoints.hub.replies import FailedAttempt, Token, ask, refused
from analyzers.core import limits
from analyzers.core.errors import HubMisbehaved, InvalidCheckpoint
from analyzers.core.terminal import plural

LIBRARY = "mantissa"
_PROGRESS_BYTES = 1 << 16  # a cut reply that had this much is continued, however often it is cut


class HubFile:
    """One file of a Hub repository at one commit (see `repository.RangeFile`).

    repository: its address on the Hub, after the host; refusal: see `replies.refused`; stopped: ends all reads once it is set.
    """

    def __init__(
        self,
        repository: str,
        commit: str,
        path: str,
        size: int,
        token: Token,
        refusal: Mapping[str, str],
        stopped: threading.Event,
    ) -> None:
        self.path, self.size = path, size
        self._url = f"{str(constants.ENDPOINT).rstrip('/')}/{repository}/resolve/{commit}/{quote(path)}"
        self._commit, self._token, self._refusal, self._stopped = commit, token, refusal, stopped
        self._lock = threading.Lock()
        self._location = ""  # the current address of the file's bytes: signed addresses expire
        self._etags: dict[str, str] = {}  # of the Hub under "", of each storage address under the address

    def close(self) -> None:
        """Do nothing: connections belong to huggingface_hub's session."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset`` on.

        Ends in bounded time: tries and waits are limited, and a cut reply is resumed where it stopped.
        Raises InvalidCheckpoint for a range outside the file, HubError and its subclasses, CheckpointNotFound, AccessDenied.
        """
        if offset < 0 or offset + len(buffer) > self.size:
            raise InvalidCheckpoint(f"{self.path} ends after {plural(self.size, 'byte')}, but more of it is needed; the file is truncated.")
        done = 0
        while done < len(buffer):
            rest, start = buffer[done:], offset + done
            done += ask(lambda rest=rest, start=start: self._read(start, rest), self._refusal, self._token, self._stopped)  # type: ignore[misc]

    def _read(self, start: int, buffer: memoryview) -> int:
        """Fill ``buffer`` as far as the reply reaches, and return the number of bytes. Raises FailedAttempt and MantissaError."""
        end, count, location = start + len(buffer), 0, self._address()
        ours = _is_on_hub(location)
        headers = build_hf_headers(token=self._token if ours else False, library_name=LIBRARY)
        headers |= {"accept-encoding": "identity", "range": f"bytes={start}-{end - 1}"}
        timeout = float(limits.HUB_TIMEOUT_SECONDS)
        try:
            with get_session().stream("GET", location, headers=headers, follow_redirects=False, timeout=timeout) as response:
                self._check(response, location, start, end)
                for piece in response.iter_raw():
                    if count + len(piece) > len(buffer):
                        raise HubMisbehaved(f"The Hub sends more of {self.path} than requested; try again later.")
                    buffer[count : count + len(piece)] = piece
                    count += len(piece)
                    if self._stopped.is_set():
                        break
        except (httpx2.HTTPError, httpx2.StreamError, OSError):
            if count < min(_PROGRESS_BYTES, len(buffer)):
                raise
        if count < min(_PROGRESS_BYTES, len(buffer)) and not self._stopped.is_set():
            raise FailedAttempt(HubMisbehaved(f"The Hub sends less of {self.path} than it promised; try again later."))
        return count

    def _address(self) -> str:
        """Return the address to read from; asks the Hub at the first call, and again once the address has expired."""
        with self._lock:
            if not self._location:
                timeout = float(limits.HUB_TIMEOUT_SECONDS)
                found = get_hf_file_metadata(self._url, token=self._token, timeout=timeout, library_name=LIBRARY)
                if found.commit_hash not in (None, self._commit):
                    raise HubMisbehaved(f"The Hub offers {self.path} of another commit than requested; try again later.")
                if found.size != self.size:
                    raise HubMisbehaved(f"The Hub contradicts itself about the length of {self.path}; try again later.")
                self._unchanged("", found.etag)
                self._location = found.location
            return self._location

    def _check(self, response: httpx2.Response, location: str, start: int, end: int) -> None:
        """Refuse, before reading the body, any reply that is not exactly the requested range of the same file."""
        headers, status, path = response.headers, response.status_code, self.path
        if status in (301, 302, 303, 307, 308, 401, 403, 404, 410) and not _is_on_hub(location):
            with self._lock:
                self._location = "" if self._location == location else self._location
            raise FailedAttempt(HubMisbehaved(f"The Hub's storage refuses to hand out {path}; try again later."), wait=0.0)
        # A server may ignore the range, which is harmless if the range is the whole file.
        whole = status == 200 and start == 0 and end == self.size and headers.get("content-length") == str(end)
        if status == 200 and not whole:
            raise HubMisbehaved(f"The Hub sends all of {path} although a part was asked for; nothing was read. Try again later.")
        if status not in (200, 206):
            raise refused(response, self._refusal, has_token=bool(self._token))
        if status == 206 and headers.get("content-range", "").strip() != f"bytes {start}-{end - 1}/{self.size}":
            raise HubMisbehaved(f"The Hub sends another part of {path} than requested, or of another length; try again later.")
        if headers.get("content-length", str(end - start)) != str(end - start):
            raise HubMisbehaved(f"The Hub announces another length of {path} than requested; try again later.")
        if headers.get("content-encoding", "identity") != "identity":
            raise HubMisbehaved(f"The Hub sends {path} in an encoding that was not requested; try again later.")
        self._unchanged(location.partition("?")[0], headers.get("etag"))

    def _unchanged(self, place: str, etag: str | None) -> None:
        """Raise HubMisbehaved if ``etag`` differs from the earlier one. A reply without an ETag passes."""
        if etag is not None and self._etags.setdefault(place, etag.removeprefix("W/").strip('"')) != etag.removeprefix("W/").strip('"'):
            raise HubMisbehaved(f"{self.path} changed on the Hub while it was read; try again.")


def _is_on_hub(location: str) -> bool:
    """Return whether an address has the Hub's own scheme, host and port: only there the token goes."""
    url, hub = httpx2.URL(location), httpx2.URL(constants.ENDPOINT)
    return (url.scheme, url.host, url.port) == (hub.scheme, hub.host, hub.port)
