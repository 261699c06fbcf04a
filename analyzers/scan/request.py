"""What a scan is asked to do with each checkpoint, and how it goes about it."""

from typing import Any, Literal

from pydantic import Field

from analyzers import limits
from analyzers.base import Request
from analyzers.checkpoints.filters import compile_filter
from analyzers.dtype_detection import DtypeRequest
from analyzers.numerics.device import Device

# How many of the models that a search or an organisation has are scanned unless told otherwise.
DEFAULT_LIMIT = 200

# Checkpoints worked on at once by one process. A quick scan waits for the network most of the time; an exact one keeps
# every core busy by itself.
QUICK_JOBS = 4
EXACT_JOBS = 1


class ScanRequest(Request):
    """What to scan, and how.

    source: a file of references, ``-`` for standard input, ``search:TEXT`` or ``org:NAME``; limit: only so many of them, the
    first (by default 200 of a search or organisation, all of a file); each: the request made of every checkpoint, whose
    model is filled in; device: where to count; jobs: how many checkpoints one process works on at once.
    """

    source: str = Field(min_length=1, max_length=4_096)
    limit: int | None = Field(default=None, ge=1, le=limits.SCAN_CHECKPOINTS)
    each: DtypeRequest
    device: Device = "cpu"
    jobs: int = Field(ge=1, le=limits.SCAN_JOBS)

    @classmethod
    def of(
        cls, source: str, asked: dict[str, Any], limit: int | None = None, device: Literal["cpu", "cuda"] = "cpu", jobs: int | None = None
    ) -> "ScanRequest":
        """Validate everything that can be before any work. ``asked``: options of `DtypeRequest`.

        Raises pydantic's ValidationError, and InvalidFilter.
        """
        # The device "auto" stands for the CPU here, and for the same report as the command for one checkpoint makes.
        each = DtypeRequest(model="", device="auto" if device == "cpu" else device, **asked)
        for name, pattern in (("include", each.include), ("exclude", each.exclude)):
            if pattern:
                compile_filter(name, pattern)
        jobs = jobs if jobs is not None else EXACT_JOBS if each.mode == "exact" else QUICK_JOBS
        return cls(source=source, limit=limit, each=each, device=device, jobs=jobs)
