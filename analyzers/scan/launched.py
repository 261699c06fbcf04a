"""The processes of ``accelerate launch`` as a team. They share a store and need share no file system.

The first process hands out checkpoints by a counter in the store: whoever is free takes the next. Who opens a large
checkpoint in exact mode offers its parts; whoever finds no checkpoint left counts such parts, each taken by a counter
too, and sends what was found to the process that opened it. Everybody signs the store with a sign of life; where one
is missing for too long, all end, and what was finished stays finished.
"""

import io
import json
import pickle
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from analyzers import limits
from analyzers.dtype_detection import Inspection, Partial
from analyzers.errors import MantissaError, ProcessLost
from analyzers.scan.outcome import Outcome
from analyzers.scan.store import Launch, Store
from analyzers.scan.team import PAUSE, CountPart, Done, Open

# What parts are made of. Anybody who reaches the store can write to it: nothing else is ever constructed.
_PLAIN = {
    "fractions.Fraction",
    "numpy.ndarray",
    "numpy.dtype",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "numpy._core.numeric._frombuffer",
}


class _Unpickler(pickle.Unpickler):
    """Reads parts, and refuses to construct anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" in _PLAIN:
            return super().find_class(module, name)
        if module.startswith("analyzers.") and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no piece of a part")


@dataclass(frozen=True, slots=True)
class _Offer:
    """A checkpoint whose parts may be taken over: by what reference it is opened, and what must be found then."""

    model: str
    commit: str
    nbytes: int
    parts: int


class Launched:
    """See `Team`. Raises ProcessLost where another process is gone or silent for SCAN_SILENCE_SECONDS."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._store = Store(launch)
        self._keys: list[str] | None = None
        self._missing = 0
        self._failure = ""
        self._left = threading.Event()
        self._beaten = time.monotonic()
        self._beating = threading.Thread(target=self._beat, name="scan-beat", daemon=True)
        self._beating.start()

    @property
    def processes(self) -> int:
        """See `Team`."""
        return self._launch.world

    @property
    def leads(self) -> bool:
        """See `Team`."""
        return self._launch.rank == 0

    @property
    def stopped(self) -> bool:
        """See `Team`."""
        return bool(self._failure)

    def begin(self, keys: Sequence[str]) -> None:
        """See `Team`."""
        self._keys = list(keys)
        self._missing = len(keys)
        self._store.put("keys", json.dumps(self._keys).encode())
        if not keys:
            self._store.put("over", b"1")

    def take(self) -> str | None:
        """See `Team`."""
        while self._keys is None:
            if self._store.has("keys"):
                self._keys = json.loads(self._store.get("keys"))
            else:
                self._pause()
        number = self._store.add("taken") - 1
        return self._keys[number] if number < len(self._keys) else None

    def give(self, done: Done) -> None:
        """See `Team`."""
        message = {"outcome": done.outcome.to_json(), "seconds": done.seconds, "process": done.process, "by_others": done.by_others}
        self._store.put(f"done/{self._store.add('done') - 1}", json.dumps(message).encode())

    def done(self) -> Iterator[Done | None]:
        """See `Team`."""
        for number in range(self._missing):
            while not self._store.has(f"done/{number}"):
                yield None
                self._pause()
            message = json.loads(self._store.take(f"done/{number}"))
            yield Done(Outcome.from_json(message.pop("outcome")), **message)
        self._store.put("over", b"1")

    def share(self, key: str, inspection: Inspection, count: CountPart) -> list[Partial]:
        """See `Team`."""
        parts = inspection.parts(limits.SCAN_PART_BYTES)
        if parts == 1:
            return [count(inspection, 0, 1)]
        model = key if key.startswith(("/", "sample:")) else f"{inspection.ref}@{inspection.commit}"
        name = f"offer/{self._store.add('offers') - 1}"
        offer = {"model": model, "commit": inspection.commit, "nbytes": inspection.nbytes, "parts": parts}
        self._store.put(name, json.dumps(offer).encode())
        found: dict[int, Partial] = {}
        try:
            while (part := self._claim(name, parts)) is not None:
                found[part] = count(inspection, part, parts)
        finally:
            self._store.add(f"{name}/claimed", parts)  # so that nobody begins with what is not wanted any more
        for part in range(parts):
            if part not in found:
                found[part] = self._await(f"{name}/part/{part}") or count(inspection, part, parts)
        return list(found.values())

    def help(self, opener: Open, count: CountPart) -> None:
        """See `Team`."""
        seen = 0
        while not self._store.has("over"):
            if seen < self._store.add("offers", 0) and self._store.has(f"offer/{seen}"):
                self._take_over(f"offer/{seen}", opener, count)
                seen += 1
            else:
                self._pause()

    def stop(self, reason: str) -> None:
        """See `Team`."""
        self._fail(reason)
        with suppress(ProcessLost):  # then they notice by themselves
            self._store.put("failed", reason.encode())

    def leave(self) -> None:
        """Say good-bye, once the scan is over; the first process, which may serve the store, is the last to go."""
        self._store.add("left")
        end = time.monotonic() + limits.SCAN_SILENCE_SECONDS
        while self.leads and self._store.add("left", 0) < self._launch.world and time.monotonic() < end:
            time.sleep(PAUSE)
        self._left.set()
        self._beating.join(1.0)

    def check(self) -> None:
        """Raises ProcessLost where the team has broken up, or the store does not answer."""
        if time.monotonic() - self._beaten > 2 * limits.SCAN_SILENCE_SECONDS:
            self._fail("The first process of the scan does not answer: run the same scan again to go on.")
        if self._failure:
            raise ProcessLost(self._failure)

    def _claim(self, offer: str, parts: int) -> int | None:
        part = self._store.add(f"{offer}/claimed") - 1
        return part if part < parts else None

    def _await(self, name: str) -> Partial | None:
        """A part that another process counts; None where it could not."""
        while not self._store.has(name):
            self._pause()
        sent = self._store.take(name)
        found = _Unpickler(io.BytesIO(sent)).load() if sent else None
        return found if isinstance(found, Partial) else None

    def _take_over(self, name: str, opener: Open, count: CountPart) -> None:
        offer = _Offer(**json.loads(self._store.get(name)))
        if self._store.add(f"{name}/claimed", 0) >= offer.parts:
            return
        try:
            with opener(offer.model) as inspection:
                found = (inspection.commit, inspection.nbytes, inspection.parts(limits.SCAN_PART_BYTES))
                if found != (offer.commit, offer.nbytes, offer.parts):
                    return  # another file of that name, on another machine
                while (part := self._claim(name, offer.parts)) is not None:
                    sent = b""
                    try:
                        sent = pickle.dumps(count(inspection, part, offer.parts))
                    finally:
                        self._store.put(f"{name}/part/{part}", sent)
        except ProcessLost:
            raise
        except MantissaError:
            return  # who offered it will see for himself

    def _pause(self) -> None:
        self.check()
        time.sleep(PAUSE)

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason

    def _beat(self) -> None:
        """Give a sign of life, and watch for those of the others: the first process for all, all others for the first."""
        others = range(1, self._launch.world) if self.leads else range(1)
        last = dict.fromkeys(others, (0, time.monotonic()))
        pause = min(limits.SCAN_SILENCE_SECONDS / 10, 2.0)
        try:
            while not self._left.wait(pause):
                self._beaten = time.monotonic()
                self._store.add(f"beat/{self._launch.rank}")
                if self._store.has("failed"):
                    self._fail(self._store.get("failed").decode() or "The scan was stopped.")
                if self._store.has("over"):
                    continue
                for rank in others:
                    beats = self._store.add(f"beat/{rank}", 0)
                    if beats != last[rank][0]:
                        last[rank] = (beats, time.monotonic())
                    elif time.monotonic() - last[rank][1] > limits.SCAN_SILENCE_SECONDS:
                        self.stop(
                            f"Process {rank} of the scan has been silent for {limits.SCAN_SILENCE_SECONDS} seconds "
                            "(MANTISSA_SCAN_SILENCE_SECONDS) and is taken for lost: run the same scan again to go on."
                        )
        except ProcessLost as error:
            self._fail(str(error))
