"""Check: a checkpoint, and its base if there is one -> reports on all of their values -> findings."""

from collections.abc import Generator, Iterator
from contextlib import closing

from analyzers.base import Progress
from analyzers.check.base_findings import against_base, base_mismatch
from analyzers.check.findings import RULES, Facts
from analyzers.check.report import LEVELS, CheckReport, Finding
from analyzers.checkpoints import Access, Checkpoint, open_checkpoint
from analyzers.dtype_detection import DtypeReport, DtypeRequest
from analyzers.dtype_detection import analyze as analyze_dtype
from analyzers.errors import MantissaError, UnsupportedWeights
from analyzers.parents import ParentsReport, ParentsRequest
from analyzers.parents import analyze as analyze_parents
from analyzers.parents.card import base_models
from analyzers.shrink import Planned, make_plan
from analyzers.update_sparsity import SparsityReport, SparsityRequest
from analyzers.update_sparsity import analyze as analyze_sparsity

# Base models of a card that are compared: more are the sources of a merge.
_STATED = 4


def check(model: str, base: str | None = None, access: Access | None = None) -> Iterator[Progress | CheckReport]:
    """Read all of ``model``, and of ``base``, and yield progress in bytes, then the report.

    base: the checkpoint that it was trained from. access: what may be read. Raises MantissaError.
    """
    access = access or Access()
    yield Progress(done=0, total=0, unit="bytes", note="reading headers")
    with open_checkpoint(model, access) as checkpoint:
        found: list[Finding] = []
        notes: list[str] = []
        with closing(analyze_dtype(DtypeRequest(model=model, mode="exact"), access)) as steps:  # type: ignore[type-var]
            for step in steps:
                if isinstance(step, DtypeReport):
                    plan = yield from _plan(checkpoint, notes)
                    facts = Facts(checkpoint, step, step.full_rows(), plan)
                    found += [each for rule in RULES for each in rule(facts)]
                else:
                    yield step
        if base is not None:
            request = SparsityRequest(base=base, tuned=(model,), mode="exact")
            for compared in analyze_sparsity(request, access):
                if isinstance(compared, SparsityReport):
                    found += against_base(compared)
                else:
                    yield compared
            found += yield from _card(checkpoint, model, base, access, notes)
        found.sort(key=lambda each: -LEVELS.index(each.level))
        yield CheckReport(
            model=checkpoint.ref,
            commit=checkpoint.commit,
            base=base,
            bytes=checkpoint.nbytes,
            saving_bytes=sum(each.saving_bytes for each in found),
            findings=tuple(found),
            notes=tuple(notes),
        )


def _plan(checkpoint: Checkpoint, notes: list[str]) -> Generator[Progress, None, list[Planned]]:
    """What `shrink` would do; nothing where it refuses, with a note where that says more than that there is nothing to shrink."""
    try:
        plan: list[Planned] = yield from make_plan(checkpoint)
    except UnsupportedWeights as error:
        if not str(error).startswith("There is nothing to shrink"):
            notes.append(f"Whether it could be stored in fewer bytes was not checked: {error}")
        return []
    return plan


def _card(checkpoint: Checkpoint, model: str, base: str, access: Access, notes: list[str]) -> Generator[Progress, None, list[Finding]]:
    """Findings on what the model card says, from samples of the models it names and of ``base``."""
    stated = base_models(checkpoint, _STATED)
    if not stated:
        return []
    found: list[Finding] = []
    try:
        for step in analyze_parents(ParentsRequest(model=model, candidates=tuple(dict.fromkeys((*stated, base)))), access):
            if isinstance(step, ParentsReport):
                found += base_mismatch(step, stated)
            else:
                yield step
    except MantissaError as error:  # the card names what cannot be read: not the fault of the weights
        notes.append(f"The card's base_model was not compared: {error}")
    return found
