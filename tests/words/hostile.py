"""What reports for reading share: a hostile name, and the error that a question ends in."""

from collections.abc import Callable
from pathlib import Path

import pytest

from analyzers.core.errors import MantissaError

# Its parts act as markup, a command to a terminal, one to a CI runner, or reverse a line, where they are not shown as text.
PARTS = ("<script>alert(1)", "\x1b[31m", "\n::error::", "\u202e")
HOSTILE = "".join(PARTS)


def refusal(ask: Callable[[], object]) -> MantissaError:
    """Return the error, without the folder that it was asked in."""
    with pytest.raises(MantissaError) as caught:
        ask()
    return type(caught.value)(str(caught.value).replace(str(Path.cwd()), "."))
