"""What came of one checkpoint."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from analyzers.errors import HubError, MantissaError


@dataclass(frozen=True, slots=True)
class Outcome:
    """The report on one checkpoint, or why there is none.

    key: see `Listed`; report: the report's JSON without timing and environment, empty where there is none; error: the kind of
    error, empty where there is a report; message: its sentence; passing: whether it may be gone at the next run.
    """

    key: str
    report: str = ""
    error: str = ""
    message: str = ""
    passing: bool = False

    @classmethod
    def failed(cls, key: str, error: Exception) -> "Outcome":
        """Of an error: what the Hub did wrong may pass, and so may what nobody expected; the rest is so."""
        if isinstance(error, MantissaError):
            return cls(key, "", type(error).__name__, str(error), isinstance(error, HubError))
        return cls(key, "", "Unexpected", f"Mantissa itself failed on this checkpoint ({type(error).__name__}): please report it.", True)

    def to_json(self) -> str:
        """For the way between processes; `from_json` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Outcome":
        """The reverse of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields)
