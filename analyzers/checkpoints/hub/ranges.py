"""Reads files on the Hub by HTTP range from many threads: located once, every reply checked, cuts resumed."""

import threading
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from urllib.parse import quote

import httpx2

from analyzers.core.errors import CheckpointError, HubMisbehaved, InvalidCheckpoint
from analyzers.core.terminal import plural

from .replies import REDIRECTS, Hub, refused
from .transfers import FailedAttempt, Patience, Transfers

_PROGRESS_BYTES = 1 << 16  # a try that read this much resets the count of failures; a trickle does not


@dataclass(frozen=True, slots=True)
class _Address:
    """The current address of a file's bytes: signed addresses expire."""

    url: httpx2.URL
    headers: Mapping[str, str]
    on_hub: bool
    place: str  # the address without its signature: the same object has the same ETag there


class _Expired(FailedAttempt):
    """The known address has expired; the Hub may give another."""


@dataclass(eq=False)
class HubLocation:
    """One file at one commit, shared by all readers. said: the size in the Hub's file list, None if it is missing."""

    hub: Hub
    repository: str
    commit: str
    path: str
    said: int | None
    refusal: Mapping[str, str]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _address: _Address | None = None
    _size: int = -1
    _etags: dict[str, str] = field(default_factory=dict)  # of the Hub under "", of each storage address under the address

    def size(self, transfers: Transfers) -> int:
        """Return the file's bytes, from the file list or else from the file itself."""
        if self.said is None:
            self.address(transfers)
            return self._size
        return self.said

    def address(self, transfers: Transfers, stale: _Address | None = None) -> _Address:
        """Return the address to read from. Asks the Hub at the first call, and again if the known address is ``stale``.

        Raises FailedAttempt or MantissaError.
        """
        known = self._address
        if known is not None and known is not stale:
            return known
        while not self._lock.acquire(timeout=0.2):
            transfers.check()
        try:
            if self._address is None or self._address is stale:
                self._address = self._resolve(transfers)
            return self._address
        finally:
            self._lock.release()

    def unchanged(self, place: str, etag: str | None) -> None:
        """Raise HubMisbehaved if ``etag`` differs from the earlier one. A reply without an ETag passes."""
        if etag is not None:
            etag = etag.removeprefix("W/")
            if self._etags.setdefault(place, etag) != etag:
                raise HubMisbehaved(f"{self.path} changed on the Hub while it was read; try again.")

    def _resolve(self, transfers: Transfers) -> _Address:
        url = httpx2.URL(f"{self.hub.url}/{self.repository}/resolve/{self.commit}/{quote(self.path)}")
        for _ in range(REDIRECTS):
            with transfers.send("HEAD", url, self.hub.headers(url)) as response:
                target = self.hub.target(url, response)
                if target is not None and self.hub.owns(target):
                    url = target
                    continue
                if target is None and response.status_code != 200:
                    raise refused(response, self.refusal, has_token=self.hub.has_token)
                return self._located(url, target, response.headers)
        raise HubMisbehaved(f"The Hub redirects in circles for {self.path}.")

    def _located(self, url: httpx2.URL, target: httpx2.URL | None, headers: Mapping[str, str]) -> _Address:
        if headers.get("x-repo-commit", self.commit) != self.commit:
            raise HubMisbehaved(f"The Hub offers {self.path} of another commit than requested; try again later.")
        length = headers.get("x-linked-size", headers.get("content-length") if target is None else None)
        if length is not None and not (length.isascii() and length.isdecimal() and len(length) < 19):
            raise HubMisbehaved(f"The Hub gives a length for {self.path} that is not a number; try again later.")
        size = self.said if length is None else int(length)
        if size is None or (self.said is not None and size != self.said):
            raise HubMisbehaved(f"The Hub contradicts itself about the length of {self.path}; try again later.")
        self._size = size
        self.unchanged("", headers.get("x-linked-etag", headers.get("etag")))
        final = target or url
        place = f"{final.scheme}://{final.netloc.decode('ascii')}{final.path}"
        if target is None:
            self.unchanged(place, headers.get("etag"))
        return _Address(final, self.hub.headers(final), target is None, place)


class HubFile:
    """One file of a Hub repository at one commit (see `repository.RangeFile`)."""

    def __init__(self, location: HubLocation, size: int) -> None:
        self.path = location.path
        self.size = size
        self._location = location
        self._transfers = Transfers()

    def close(self) -> None:
        """Stop the reads in progress; they and all later reads raise HubError. Idempotent."""
        self._transfers.close()

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset`` on.

        Ends in bounded time: tries, waiting and slowness are limited, and a cut reply is resumed where it stopped.
        Raises InvalidCheckpoint for a range outside the file, HubError and its subclasses, CheckpointNotFound, AccessDenied.
        """
        if offset < 0 or offset + len(buffer) > self.size:
            raise InvalidCheckpoint(f"{self.path} ends after {plural(self.size, 'byte')}, but more of it is needed; the file is truncated.")
        patience, done = Patience(self._transfers), 0
        stale: _Address | None = None
        while done < len(buffer):
            before, address = done, None
            try:
                address = self._location.address(self._transfers, stale)
                with closing(self._pieces(address, offset + done, offset + len(buffer))) as pieces:
                    for piece in pieces:
                        after = done + len(piece)
                        if after > len(buffer):
                            raise HubMisbehaved(f"The Hub sends more of {self.path} than requested; try again later.")
                        buffer[done:after] = piece
                        done = after
                if done < len(buffer):
                    raise FailedAttempt(HubMisbehaved(f"The Hub sends less of {self.path} than it promised; try again later."))
            except FailedAttempt as failure:
                if done - before >= _PROGRESS_BYTES:
                    patience.progress()
                stale = address if isinstance(failure, _Expired) else stale
                patience.after(failure)

    def _pieces(self, address: _Address, start: int, end: int) -> Generator[bytes, None, None]:
        """Request bytes ``start`` to ``end`` - 1 and yield them as they arrive. Raises FailedAttempt or MantissaError."""
        headers = {**address.headers, "range": f"bytes={start}-{end - 1}"}
        with self._transfers.send("GET", address.url, headers) as response:
            self._check(response, address, start, end)
            yield from self._transfers.body(response)

    def _check(self, response: httpx2.Response, address: _Address, start: int, end: int) -> None:
        """Refuse, before reading the body, any reply that is not exactly the requested range of the same file."""
        headers, status, path = response.headers, response.status_code, self.path
        if status in (301, 302, 303, 307, 308, 401, 403, 404, 410):
            error = HubMisbehaved(f"The Hub's storage refuses to hand out {path}; try again later.")
            found = refused(response, self._location.refusal, has_token=self._location.hub.has_token)
            raise _Expired(found if address.on_hub and isinstance(found, CheckpointError) else error, wait=0.0)
        # A server may ignore the range, which is harmless if the range is the whole file.
        whole = status == 200 and start == 0 and end == self.size and headers.get("content-length") == str(end)
        if status == 200 and not whole:
            raise HubMisbehaved(f"The Hub sends all of {path} although a part was asked for; nothing was read. Try again later.")
        if status not in (200, 206):
            raise refused(response, self._location.refusal, has_token=self._location.hub.has_token)
        if status == 206 and headers.get("content-range", "").strip() != f"bytes {start}-{end - 1}/{self.size}":
            raise HubMisbehaved(f"The Hub sends another part of {path} than requested, or of another length; try again later.")
        if headers.get("content-length", str(end - start)) != str(end - start):
            raise HubMisbehaved(f"The Hub announces another length of {path} than requested; try again later.")
        if headers.get("content-encoding", "identity") != "identity":
            raise HubMisbehaved(f"The Hub sends {path} in an encoding that was not requested; try again later.")
        self._location.unchanged(address.place, headers.get("etag"))
