"""Reuses tokenizer processes between tests, since starting one takes a second of a core, and most tests have another subject."""

from collections.abc import Iterator
from typing import Any

import pytest

from analyzers.language_models.bounded_process import Bounded

_spare: list["_Kept"] = []


class _Kept(Bounded):
    """A process that stays open for reuse when it is closed, unless a request failed."""

    def __init__(self) -> None:
        super().__init__()
        self._failed = False

    def ask(self, question: str, **options: Any) -> Any:
        try:
            return super().ask(question, **options)
        except BaseException:
            self._failed = True
            raise

    def close(self) -> None:
        if self._failed or self.has_ended():
            super().close()
        elif self not in _spare:
            _spare.append(self)


@pytest.fixture(autouse=True, scope="module")
def kept_processes() -> Iterator[None]:
    """Let the tests of a file that imports this fixture reuse the same processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analyzers.language_models.tokenizer.open_bounded", lambda: _spare.pop() if _spare else _Kept())
        yield
    while _spare:
        Bounded.close(_spare.pop())
