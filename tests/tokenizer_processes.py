"""Reuses tokenizer processes between tests, since starting one takes a second of a core, and most tests have another subject."""

import atexit
from collections.abc import Iterator
from typing import Any

import pytest

from analyzers.language_models.bounded_process import Bounded, ProgramFailed

_spare: list["_Kept"] = []


class _Kept(Bounded):
    """A process that stays open for reuse when it is closed, unless a request broke it off."""

    def __init__(self) -> None:
        super().__init__()
        self._failed = False

    def ask(self, question: str, **options: Any) -> Any:
        try:
            return super().ask(question, **options)
        except BaseException as error:
            self._failed = not isinstance(error, ProgramFailed) or error.failed in ("seconds", "bytes", "broke off", "limit")
            raise

    def close(self) -> None:
        if self._failed or self.has_ended():
            super().close()
        elif self not in _spare:
            _spare.append(self)


def open_kept() -> Bounded:
    """Return a process that another test closed, or else a new one."""
    while _spare:
        if not (process := _spare.pop()).has_ended():
            return process
        Bounded.close(process)
    return _Kept()


@pytest.fixture(autouse=True, scope="module")
def kept_processes() -> Iterator[None]:
    """Let the tests of all files that import this fixture reuse the same processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analyzers.language_models.tokenizer.Bounded", open_kept)
        yield


@atexit.register
def _close() -> None:
    while _spare:
        Bounded.close(_spare.pop())
