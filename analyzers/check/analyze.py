"""Checks a checkpoint and its base, if there is one: turns the reports on all of their values into findings."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import cache
from time import perf_counter
from typing import Any

from analyzers.check.base_rules import against_base, base_mismatch
from analyzers.check.engine_facts import EngineFacts
from analyzers.check.ignore_list import ignore_list
from analyzers.check.load_rules import companions, keep_fp32, load_dtype
from analyzers.check.loads import applies, judge
from analyzers.check.promises import promises
from analyzers.check.report import ANALYSIS_VERSION, LEVELS, CheckReport, CheckRequest, Finding
from analyzers.check.rules import INDEX, RULES, Facts, file_rules
from analyzers.check.scale_rules import scales, unscaled
from analyzers.check.words import KINDS, STATES, WORDS, finding
from analyzers.checkpoints import Access, Checkpoint, MergedCheckpoint, open_checkpoint, quoted, read_coverage, with_commits
from analyzers.checkpoints.adapters.merged_checkpoint import is_adapter_alone
from analyzers.checkpoints.matching.copies import relaid_copies
from analyzers.checkpoints.model_card import base_models
from analyzers.checkpoints.weight_files.file_names import GGUF
from analyzers.comparison.compare import descent
from analyzers.comparison.parents import ParentsReport, ParentsRequest
from analyzers.comparison.parents import analyze as analyze_parents
from analyzers.core.coverage import Coverage
from analyzers.core.errors import InvalidCheckpoint, MantissaError, UnsupportedWeights
from analyzers.core.formatting import plural
from analyzers.core.notes import Advice, Note
from analyzers.core.report import Timing, check_size, content_id, environment, needs_the_whole
from analyzers.core.request import Progress
from analyzers.dtype import DtypeRequest, Inspection
from analyzers.dtype.statistics import TensorResult
from analyzers.language_models.load_report import LoadingOracle, kept_in_fp32
from analyzers.write.plan import Kept, NothingToShrink, Planned, plan_shrink

# Base models that a card may name and that are compared; a card that names more describes a merge.
_STATED = 4
# Notes of an open checkpoint that findings repeat.
_IN_FINDINGS = {*INDEX, "nested"}
_ENGINE_RULES = (scales, unscaled, ignore_list, promises, keep_fp32, load_dtype, companions)
# Rules whose findings contradict the configuration, the card or the base.
_CLAIMS = frozenset({"config-dtype", "base-mismatch", "unchanged", "missing", "misshapen", "replaced"})
# Rules on how weights are stored, which those that are computed, of BASE+ADAPTER, are not.
_OF_STORED = frozenset({"upcast", "config-dtype"})


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
        if base is not None and is_adapter_alone(checkpoint):
            raise UnsupportedWeights(f"{quoted(checkpoint.ref, 200)} is an adapter: check it with its base, as BASE+ADAPTER.")
        nbytes = checkpoint.nbytes + (base.nbytes if base else 0)
        check_size(nbytes, largest, "the command line")
        oracle = LoadingOracle(checkpoint) if applies(checkpoint) else None
        notes = [note for note in checkpoint.notes if note.code not in _IN_FINDINGS]
        judged = cache(lambda: judge(checkpoint, oracle, notes))  # asked once, when values have been read
        found, reach, results = yield from _alone(checkpoint, access, notes, lambda: kept_in_fp32(judged()[0] if oracle else None))
        coverage = [reach]
        loading, unfit = judged()
        found += unfit
        if isinstance(checkpoint, MergedCheckpoint):
            found = [each for each in found if each.rule not in _OF_STORED]
        elif not any(file.path.endswith(GGUF) for file in checkpoint.files):
            notes[:] = [note for note in notes if note.code != "misfit-scales"]  # a finding of `scales`
            facts = EngineFacts(checkpoint, results, loading, EngineFacts(base) if base else None, notes=notes)
            found += (each for rule in _ENGINE_RULES for each in rule(facts))
        if base is not None and not reach.covered:
            notes.append(WORDS.note("not-compared", base=base.ref))
        elif base is not None:
            model, other = with_commits(checkpoint.ref, checkpoint.commit), with_commits(base.ref, base.commit)
            origin, compared = yield from _last(descent(model, other, access))
            loads = loading if loading and not loading.refused and not loading.quantized else None
            codes = {name for each in found if each.rule in ("scales", "unscaled") for name in each.tensors}
            found += against_base(origin, compared, loads, codes)
            of_base, of_model = compared.coverage
            coverage = [reach.compared_as(of_model), of_base]
            found += yield from _card(checkpoint, origin, model, other, access, notes)
        findings = tuple(sorted(found, key=lambda each: -LEVELS.index(each.level)))
        loading_judged = "loading-not-judged" not in {note.code for note in notes}
        resolved = {"model": checkpoint.ref, "commit": checkpoint.commit}
        resolved |= {"base": base.ref, "base_commit": base.commit} if base else {}
        yield CheckReport(
            id=content_id("check", ANALYSIS_VERSION, resolved),
            analysis_version=ANALYSIS_VERSION,
            request=request,
            checkpoint=checkpoint.facts(),
            base=base.facts() if base else None,
            saving_bytes=sum(each.saving_bytes for each in found),
            findings=findings,
            answer=_answer(checkpoint, findings, coverage, loading_judged),
            advice=_advice(checkpoint, findings, coverage, loading_judged),
            notes=tuple(notes),
            loading_judged=loading_judged,
            coverage=tuple(coverage),
            timing=Timing.since(start, nbytes, perf_counter() - start),
            environment=environment("cpu", ("numpy", "numba", "huggingface_hub", "pydantic")),
        )


def _answer(checkpoint: Checkpoint, findings: Sequence[Finding], coverage: Sequence[Coverage], loading_judged: bool) -> Note:
    """Say whether it loads, and name the findings, the gravest first; "nothing-found" needs all weights."""
    state = _state(findings, coverage, loading_judged)
    if findings:
        note = _found(findings)
    else:
        code = needs_the_whole("nothing-found", coverage, "nothing-in-part")
        note = WORDS.note(code, tensors=len(checkpoint.tensors), bytes=checkpoint.nbytes)
    return note.model_copy(update={"values": {**note.values, "state": state}, "text": STATES[state].format(answer=note.text)})


def _found(findings: Sequence[Finding]) -> Note:
    """Count the findings of each level, and name the kinds of the gravest."""
    nouns = {"error": "error", "warning": "warning", "info": "remark"}
    numbers = {level: sum(each.level == level for each in findings) for level in LEVELS[::-1]}
    kinds = list(dict.fromkeys(each.code.replace("-", " ") for each in findings))
    more = [f"{len(kinds) - KINDS} more"] * (len(kinds) > KINDS)
    return WORDS.note(
        f"{nouns[findings[0].level]}s",
        errors=numbers["error"],
        warnings=numbers["warning"],
        remarks=numbers["info"],
        found=tuple(plural(number, nouns[level]) for level, number in numbers.items() if number),
        kinds=(*kinds[:KINDS], *more),
    )


def _state(findings: Sequence[Finding], coverage: Sequence[Coverage], judged: bool) -> str:
    """Return the code of `STATES`. A model is what it claims if no finding contradicts its configuration, its card or its base."""
    errors = {each.rule for each in findings if each.level == "error"}
    if errors & {"loads", "empty"}:
        return "does-not-load"
    if not judged:
        return "unjudged"
    grave = {each.rule for each in findings if each.level != "info"}
    claimed = not errors and not grave & _CLAIMS and all(each.whole for each in coverage)
    return "as-claimed" if claimed else "loads"


def _advice(checkpoint: Checkpoint, findings: Sequence[Finding], coverage: Sequence[Coverage], loading_judged: bool) -> Advice:
    """Advise on the gravest findings, or on what was not judged."""
    rules, levels = {each.rule for each in findings}, {each.level for each in findings}
    cases = {
        "fix-errors": "error" in levels,
        "shrink": "upcast" in rules,
        "heed-warnings": "warning" in levels,
        "try-loading": not loading_judged,
        "look-further": "not-read" in rules or not all(each.whole for each in coverage),
        "nothing-to-change": True,
    }
    code = next(code for code, holds in cases.items() if holds)
    saving = sum(each.saving_bytes for each in findings if each.rule == "upcast")
    return WORDS.advice(code, "dtype", checkpoint.ref, bytes=saving)


def _alone(
    checkpoint: Checkpoint, access: Access, notes: list[Note], kept: Kept
) -> Generator[Progress, None, tuple[list[Finding], Coverage, Sequence[TensorResult]]]:
    """Find what is wrong with the checkpoint on its own; returns the findings, the coverage of the reads, and the results by tensor."""
    model = with_commits(checkpoint.ref, checkpoint.commit)
    try:
        # A filter that includes everything: of quantized weights, those that are still floats are judged.
        inspection = Inspection(DtypeRequest(model=model, mode="exact", include="" if checkpoint.quantization is None else "."), access)
    except UnsupportedWeights as error:
        if checkpoint.quantization is None:
            raise
        notes.append(WORDS.note("no-values-judged", why=str(error)))
        coverage = read_coverage(checkpoint, checkpoint.tensors, (), ())
        return list(file_rules(checkpoint, coverage)), coverage, ()
    with inspection:
        try:
            report = yield from inspection.run()
        except InvalidCheckpoint as error:
            if checkpoint.quantization is None:
                raise
            coverage = read_coverage(checkpoint, checkpoint.tensors, (), ())
            names = [error.tensor] if error.tensor else []
            unreadable = finding("non-finite", "error", "values-not-readable", names, why=str(error))
            return [unreadable, *file_rules(checkpoint, coverage)], coverage, ()
        plan: list[Planned] = []
        try:
            plan = yield from plan_shrink(checkpoint, kept=kept)  # as `shrink` does
        except NothingToShrink:
            pass
        except UnsupportedWeights as error:
            notes.append(WORDS.note("shrinking-not-judged", why=str(error)))
        copies = yield from relaid_copies(checkpoint)
        facts = Facts(checkpoint, report, inspection.results, plan, copies)
        found = [each for rule in RULES for each in rule(facts)]
        return [*found, *file_rules(checkpoint, report.coverage[0])], report.coverage[0], inspection.results


def _card(
    checkpoint: Checkpoint, origin: ParentsReport, model: str, base: str, access: Access, notes: list[Note]
) -> Generator[Progress, None, list[Finding]]:
    """Compare samples of the model with the base and with the models that its card names; returns findings on the card.

    origin: how the model comes from the base, which answers for a card that names it alone.
    """
    stated = [name for name in base_models(checkpoint, _STATED) if name.lower() != checkpoint.ref.lower()]
    if {name.lower() for name in stated} <= {origin.candidates[0].ref.lower()}:
        return list(base_mismatch(origin, stated)) if stated else []
    try:
        request = ParentsRequest(model=model, candidates=tuple(dict.fromkeys((*stated, base))))
        report = yield from _last(analyze_parents(request, access))
    except MantissaError as error:  # the card names a model that cannot be read, which is not the fault of the weights
        notes.append(WORDS.note("card-not-compared", why=str(error)))
        return []
    return list(base_mismatch(report, stated))


def _last(analysis: Any) -> Generator[Progress, None, Any]:
    """Yield the progress of an analysis, and return its report."""
    with closing(analysis) as steps:
        for step in steps:
            if not isinstance(step, Progress):
                return step
            yield step
