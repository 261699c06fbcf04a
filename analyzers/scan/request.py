"""The request of a scan."""

import re
from typing import Any, Literal

from pydantic import Field, field_validator

from analyzers.checkpoints.tensor_names.filters import compile_filter
from analyzers.core.request import Request
from analyzers.dtype import DtypeRequest
from analyzers.numerics.device import Device

_MOST_JOBS = 64  # Checkpoints that one process of a scan reads at once.
# Checkpoints that one process reads at once: a quick scan mostly waits for the network, an exact one keeps every core busy.
QUICK_JOBS = 4
EXACT_JOBS = 1


class ScanRequest(Request):
    """A list of checkpoints to scan, and the options of the scan.

    source: a file of references, or ``-`` for standard input; each: the request for every checkpoint, without its model; device: the
    device to count on; jobs: checkpoints that one process reads at once; dask: address of a dask scheduler, ``local`` for a cluster on this
    machine, None for threads of this process.
    """

    source: str = Field(min_length=1, max_length=4_096)
    each: DtypeRequest
    device: Device = "cpu"
    jobs: int = Field(ge=1, le=_MOST_JOBS)
    dask: str | None = None

    @field_validator("dask")
    @classmethod
    def _is_an_address(cls, dask: str | None) -> str | None:
        if dask is not None and not re.fullmatch(r"local|((tcp|tls|ws|wss)://)?[\w.\-\[\]:]{1,200}:\d{1,5}", dask):
            raise ValueError("dask must be local or the address of a dask scheduler, for example tcp://10.0.0.1:8786")
        return dask

    @classmethod
    def of(
        cls,
        source: str,
        asked: dict[str, Any],
        device: Literal["cpu", "cuda"] = "cpu",
        jobs: int | None = None,
        dask: str | None = None,
    ) -> "ScanRequest":
        """Build the request, validating everything before any work is done. asked: options of `DtypeRequest`.

        Raises pydantic's ValidationError and InvalidFilter.
        """
        # "auto", the default of the dtype command, means the CPU and gives the same report.
        each = DtypeRequest(model="", device="auto" if device == "cpu" else device, **asked)
        for name, pattern in (("include", each.include), ("exclude", each.exclude)):
            if pattern:
                compile_filter(name, pattern)
        jobs = jobs if jobs is not None else EXACT_JOBS if each.mode == "exact" else QUICK_JOBS
        return cls(source=source, each=each, device=device, jobs=jobs, dask=dask)
