"""Checks a checkpoint and its base, if there is one: turns the reports on all of their values into findings."""

from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from time import perf_counter

from analyzers.base import Progress, Timing, check_size, content_id, environment
from analyzers.check import adapter_rules
from analyzers.check.base_rules import against_base, base_mismatch, dropped_layers
from analyzers.check.loads import applies, judge
from analyzers.check.loads_files import training_state
from analyzers.check.report import ANALYSIS_VERSION, LEVELS, NOT_OF_ADAPTERS, NOT_OF_MERGED, CheckReport, CheckRequest, Finding, Rule
from analyzers.check.rules import RULES, Facts, file_rules
from analyzers.checkpoints import Access, Checkpoint, MergedCheckpoint, RelaidCopies, open_checkpoint, read_coverage, with_commits
from analyzers.checkpoints.adapters.merged_checkpoint import is_adapter_alone
from analyzers.coverage import Coverage
from analyzers.dtype_detection import DtypeRequest, Inspection
from analyzers.errors import MantissaError, UnsupportedWeights
from analyzers.language_models.load_report import LoadingOracle
from analyzers.parents import ParentsReport, ParentsRequest
from analyzers.parents import analyze as analyze_parents
from analyzers.parents.model_card import base_models
from analyzers.shrink import NothingToShrink, Planned, make_plan
from analyzers.update_sparsity import SparsityReport, SparsityRequest
from analyzers.update_sparsity import analyze as analyze_sparsity

# Base models that a card may name and that are compared; a card that names more describes a merge.
_STATED = 4


def analyze(request: CheckRequest, access: Access | None = None, *, largest: int | None = None) -> Iterator[Progress | CheckReport]:
    """Check the model, and compare it with its base; yields progress in bytes, then the report. All values are read.

    access: what may be read; by default public Hub repositories and samples. largest: refuse checkpoints of more bytes together (the page's
    limit). Raises MantissaError. Closing the generator cancels the reads.
    """
    start, access = perf_counter(), access or Access()
    yield Progress(done=0, total=0, unit="bytes", note="reading headers")
    with ExitStack() as opened:
        checkpoint = opened.enter_context(open_checkpoint(request.model, access))
        base = opened.enter_context(open_checkpoint(request.base, access)) if request.base else None
        lone = is_adapter_alone(checkpoint)
        nbytes = checkpoint.nbytes + (base.nbytes if base and not lone else 0)
        check_size(nbytes, largest, "the command line")
        found: list[Finding] = []
        notes: list[str] = []
        oracle = opened.enter_context(LoadingOracle(checkpoint)) if applies(checkpoint) else None  # loads libraries in the meantime
        alone, reach = yield from _alone(checkpoint, with_commits(checkpoint.ref, checkpoint.commit), access, notes)
        coverage = [reach]
        unjudged: list[str] = []
        merged = isinstance(checkpoint, MergedCheckpoint)
        not_applied = NOT_OF_ADAPTERS if lone else NOT_OF_MERGED if merged else frozenset[Rule]()
        found += [each for each in alone if each.rule not in not_applied]
        if lone:
            unfit, base = adapter_rules.judge(checkpoint, base, access, unjudged)
            if base is not None:
                opened.enter_context(base)
        else:
            notes += ["How the base itself was trained and stored is not judged here: check it alone."] * merged
            loading, unfit = judge(checkpoint, oracle, notes, unjudged)
            unfit += adapter_rules.merged(checkpoint, unjudged)
        notes += [*unjudged, *training_state(checkpoint)]
        found += unfit
        if base is not None and not lone and not reach.covered:
            notes.append(f"It was not compared with {base.ref}.")
        elif base is not None and not lone and request.base is not None:
            model, other = with_commits(checkpoint.ref, checkpoint.commit), with_commits(base.ref, base.commit)
            compared = yield from _compared(model, other, access)
            missing = {each.name for each in compared.unmatched.missing}
            loads = loading if loading and not loading.refused else None
            found += against_base(compared, dropped_layers(base, checkpoint, missing), loads)
            of_base, of_model = compared.coverage
            coverage = [reach.compared_as(of_model), of_base]
            notes += [note.text for note in compared.notes if note.text not in notes]
            found += yield from _card(checkpoint, model, other, access, notes)
        resolved = {"model": checkpoint.ref, "commit": checkpoint.commit}
        resolved |= {"base": base.ref, "base_commit": base.commit} if base else {}
        yield CheckReport(
            id=content_id("check", ANALYSIS_VERSION, resolved),
            analysis_version=ANALYSIS_VERSION,
            request=request,
            checkpoint=checkpoint.facts(),
            adapter=lone,
            base=base.facts() if base else None,
            saving_bytes=sum(each.saving_bytes for each in found),
            findings=tuple(sorted(found, key=lambda each: -LEVELS.index(each.level))),
            notes=tuple(notes),
            loading_judged=not unjudged,
            not_applied=tuple(sorted(not_applied)),
            coverage=tuple(coverage),
            timing=Timing.since(start, nbytes, perf_counter() - start),
            environment=environment("cpu", ("numpy", "numba", "huggingface_hub", "pydantic")),
        )


def _alone(
    checkpoint: Checkpoint, model: str, access: Access, notes: list[str]
) -> Generator[Progress, None, tuple[list[Finding], Coverage]]:
    """Find what is wrong with the checkpoint on its own; returns the findings and the coverage of the reads."""
    try:
        # A filter that includes everything: of quantized weights, those that are still floats are judged.
        inspection = Inspection(DtypeRequest(model=model, mode="exact", include="" if checkpoint.quantization is None else "."), access)
    except UnsupportedWeights as error:
        if checkpoint.quantization is None:
            raise
        notes += [*(note.text for note in checkpoint.notes), f"No values were judged: {error}"]
        coverage = read_coverage(checkpoint, checkpoint.tensors, (), ())
        return list(file_rules(checkpoint, coverage)), coverage
    with inspection:
        report = yield from inspection.run()
        notes += report.notes
        plan = yield from _plan(checkpoint, notes)
        copies = RelaidCopies(checkpoint)
        for step in copies.compare():
            yield Progress(done=step.bytes_read, total=step.bytes_read, unit="bytes", note="comparing what is stored in two layouts")
        facts = Facts(checkpoint, report, inspection.results, plan, copies.found)
        found = [each for rule in RULES for each in rule(facts)]
        return [*found, *file_rules(checkpoint, report.coverage[0])], report.coverage[0]


def _plan(checkpoint: Checkpoint, notes: list[str]) -> Generator[Progress, None, list[Planned]]:
    """Plan the shrinking as `shrink` does. The plan is empty if `shrink` refuses; a note gives the reason unless nothing can be shrunk."""
    try:
        plan: list[Planned] = yield from make_plan(checkpoint)
    except NothingToShrink:
        return []
    except UnsupportedWeights as error:
        notes.append(f"Whether it could be stored in fewer bytes was not checked: {error}")
        return []
    return plan


def _compared(model: str, base: str, access: Access) -> Generator[Progress, None, SparsityReport]:
    """Compare all values with those of the base; yields progress and returns the report of update sparsity."""
    with closing(analyze_sparsity(SparsityRequest(base=base, tuned=(model,), mode="exact"), access)) as steps:  # type: ignore[type-var]
        for step in steps:
            if isinstance(step, SparsityReport):
                return step
            yield step
    raise AssertionError("an analysis ends with its report")


def _card(checkpoint: Checkpoint, model: str, base: str, access: Access, notes: list[str]) -> Generator[Progress, None, list[Finding]]:
    """Compare samples of the model with the base and with the models that its card names; returns findings on the card."""
    stated = [name for name in base_models(checkpoint, _STATED) if name.lower() != checkpoint.ref.lower()]
    if not stated:
        return []
    found: list[Finding] = []
    try:
        request = ParentsRequest(model=model, candidates=tuple(dict.fromkeys((*stated, base))))
        with closing(analyze_parents(request, access)) as steps:  # type: ignore[type-var]
            for step in steps:
                if isinstance(step, ParentsReport):
                    found += base_mismatch(step, stated)
                else:
                    yield step
    except MantissaError as error:  # the card names a model that cannot be read, which is not the fault of the weights
        notes.append(f"The card's base_model was not compared: {error}")
    return found
