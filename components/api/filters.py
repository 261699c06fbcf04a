"""The filters of the library's lists: a value that cannot occur is refused, where it would silently find nothing."""

from collections.abc import Iterable
from typing import get_args

from analyzers import ANALYZERS
from analyzers.checkpoints import DTYPE_BITS
from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.tensor import PACKED_BITS
from analyzers.dtype_detection.lineage import FORMAT_OF
from analyzers.dtype_detection.report import RiskLevel, Verdict
from analyzers.errors import InvalidRequest
from components.library import PRECISIONS, Library, model_id

# The values that a column can have. Others, as the quantized types of GGUF, are known where a stored result has them.
_KNOWN: dict[str, tuple[str, ...]] = {
    "precision": PRECISIONS,
    "trained_in": (*PRECISIONS, "undecided"),
    "storage": (*DTYPE_BITS, *PACKED_BITS),
    "passed_through": (*FORMAT_OF.values(), "fp4_e2m1", "mxfp4", "nvfp4", *get_args(Verdict)),
    "fp16_risk": get_args(RiskLevel),
}


def check_filters(library: Library, filters: Iterable[tuple[str, str]]) -> None:
    """Raise InvalidRequest for the first ``(name, value)`` that no row can have; an empty value is no filter."""
    known = _KNOWN | {"analyzer": tuple(ANALYZERS)}
    for name, value in filters:
        if name == "model" and value:
            model_id(value)
        elif value and name in known and value not in known[name] and value not in library.facets("results").get(name, {}):
            raise InvalidRequest(f"{name} must be one of {', '.join(known[name])}, not {quoted(value)}.")
