"""The result of scanning one checkpoint."""

import hashlib
from dataclasses import dataclass

from analyzers.errors import HubError, MantissaError, ProcessLost


@dataclass(frozen=True, slots=True)
class Outcome:
    """The report on one checkpoint, or why there is none.

    key: see `Listed`; report: the report's JSON without timing and environment, empty if there is none; error: the name of the error
    class, empty if there is a report; message: its sentence; transient: whether another run may succeed.
    """

    key: str
    report: str = ""
    error: str = ""
    message: str = ""
    transient: bool = False

    @classmethod
    def failed(cls, key: str, error: Exception) -> "Outcome":
        """From an error: those of the Hub, of a lost worker and unexpected ones are transient, the rest is permanent."""
        if isinstance(error, MantissaError):
            return cls(key, "", type(error).__name__, str(error), isinstance(error, HubError | ProcessLost))
        return cls(key, "", "Unexpected", f"Mantissa itself failed on this checkpoint ({type(error).__name__}): please report it.", True)

    @property
    def digest(self) -> str:
        """SHA-256 of everything in it."""
        return hashlib.sha256("\0".join((self.key, self.report, self.error, self.message, str(self.transient))).encode()).hexdigest()
