"""Defines every error that Mantissa raises on purpose, as one tree.

Each message is one sentence (or two) that a user can act on: what was wrong, with which value, what to do. It never contains a traceback, a
token, or a path of the server. The command line prints it and exits with status 2; the page shows it in place of the result.

    MantissaError
    ├── InvalidRequest            the request cannot be used as it is
    │   ├── InvalidReference      not a model id, sample or (command line) local path
    │   ├── InvalidData           not instruction data, or too little of it
    │   └── InvalidFilter         --include / --exclude does not compile, runs too long or matches nothing
    ├── CheckpointError           the checkpoint cannot be used
    │   ├── CheckpointNotFound    no such repository, revision, sample, folder or file
    │   │   └── HiddenRepository  no such repository, or a private one
    │   ├── AccessDenied          gated or disabled, or the login or token may not read it
    │   │   └── TokenRefused      the login or token itself is not valid
    │   ├── NoWeights             no file that can be read as weights
    │   ├── InvalidCheckpoint     damaged, truncated or contradictory files
    │   ├── UnsupportedWeights    weights in an unsupported form, or without float values
    │   ├── UnknownArchitecture   not a causal language model, or of an unsupported family
    │   └── ModelTooLarge         needs more memory or disk than this machine has; gives both sizes
    ├── HubError                  the Hub failed
    │   ├── HubUnreachable        no connection, or too slow to be of use
    │   ├── HubThrottled          too many requests; says how long to wait
    │   └── HubMisbehaved         a reply that contradicts the protocol or an earlier reply
    ├── MissingExtra              a library of an extra is not installed; says which, with the line for pip
    ├── ProcessLost               the workers of a cluster that scanned a checkpoint were lost
    ├── LibraryUnavailable        the folder of the library cannot be used: full, read-only, or not a library
    └── LimitExceeded             larger than a limit; names it, and its variable if it is a setting
"""

from typing import Self


class MantissaError(Exception):
    """Base of the tree. ``str(error)`` is the sentence for the user, always a single line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

    def about(self, what: str) -> Self:
        """Return a copy of the error whose sentence begins with ``what``, the one of several checkpoints that it is about."""
        return type(self)(f"{what}: {self}")


class InvalidRequest(MantissaError):
    """The request cannot be used as it is."""


class InvalidReference(InvalidRequest):
    """A reference that is not a model id, a built-in sample or, on the command line, a local path."""


class InvalidData(InvalidRequest):
    """Data that is not instruction data, or too little of it."""


class InvalidFilter(InvalidRequest):
    """A name filter that does not compile, takes too long, or matches no tensor."""


class CheckpointError(MantissaError):
    """The checkpoint cannot be used."""


class CheckpointNotFound(CheckpointError):
    """A repository, revision, sample, folder or file that does not exist."""


class HiddenRepository(CheckpointNotFound):
    """A repository that does not exist or that this caller may not see: the Hub does not tell which."""


class AccessDenied(CheckpointError):
    """A gated or disabled repository, or one that the login or token may not read."""


class TokenRefused(AccessDenied):
    """The login or token is not valid, expired or revoked. A new login helps."""


class NoWeights(CheckpointError):
    """A checkpoint none of whose files can be read as weights."""


class InvalidCheckpoint(CheckpointError):
    """Damaged, truncated or contradictory files. tensor: name of the one at fault, if that is known."""

    def __init__(self, message: str, tensor: str = "") -> None:
        super().__init__(message)
        self.tensor = tensor


class UnsupportedWeights(CheckpointError):
    """Weights in an unsupported form, or without float values."""


class UnknownArchitecture(CheckpointError):
    """A model that is not a causal language model that can be run, or is of an unsupported family."""


class ModelTooLarge(CheckpointError):
    """Needs more memory or disk than this machine has."""


class HubError(MantissaError):
    """The Hub failed."""


class HubUnreachable(HubError):
    """A Hub that cannot be reached, or only over a connection too slow to be of use."""


class HubThrottled(HubError):
    """The Hub refuses for now because of too many requests."""


class HubMisbehaved(HubError):
    """A reply of the Hub contradicts the protocol or an earlier reply."""


class MissingExtra(MantissaError):
    """A library of an extra is not installed."""


class ProcessLost(MantissaError):
    """The workers of a cluster that scanned a checkpoint were lost, one after another."""


class LibraryUnavailable(MantissaError):
    """The folder of the library cannot be used: full, read-only, busy for too long, or damaged."""


class LimitExceeded(MantissaError):
    """Larger than a limit."""
