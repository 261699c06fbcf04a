"""Reports for tests: the passport of a sample, as if a model on the Hub had these weights."""

from functools import cache
from typing import Any

from analyzers.checkpoints import Access
from analyzers.dtype import DtypeReport, DtypeRequest, analyze

COMMIT = "1f2e3d4c5b6a79881f2e3d4c5b6a79881f2e3d4c"


@cache
def _passport() -> DtypeReport:
    *_, report = analyze(DtypeRequest(model="sample:tiny-bf16-as-fp32", mode="exact"), Access())
    assert isinstance(report, DtypeReport)
    return report


def report(model: str, *, public: bool = True, **changes: Any) -> DtypeReport:
    """Return the report of ``model``. changes: of fields."""
    passport = _passport()
    facts = passport.checkpoint.model_copy(update={"ref": model, "commit": COMMIT, "public": public})
    request = passport.request.model_copy(update={"model": model})
    return passport.model_copy(update={"checkpoint": facts, "request": request, **changes})
