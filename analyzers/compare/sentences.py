"""Sentences that say what models are to each other, made of the statements of parents and the counts of update sparsity."""

from typing import TYPE_CHECKING

from analyzers.base import NextStep
from analyzers.compare.report import distinct_names
from analyzers.formatting import listed, share
from analyzers.parents.facts import related

if TYPE_CHECKING:
    from analyzers.compare.report import CompareReport
    from analyzers.parents import ParentsReport
    from analyzers.update_sparsity import SparsityReport

# How a statement of parents begins -> the same with the model as its subject; others follow the model and a colon.
_WITH_SUBJECT = {
    "The same weights as": "has the same weights as",
    "Derived from": "is derived from",
    "A quantized copy": "is a quantized copy",
    "A merge": "is a merge",
    "A stack": "is a stack",
    "Made of": "is made of",
    "Made from": "is made from",
    "The base of": "is the base of",
}
_ANCESTOR = ", or from a common ancestor: "
_RUN = "Checkpoints of one training run can look like this."
_UNORDERED = "Weights do not show which of them came first"


def headline(report: "CompareReport") -> str:
    """Return the sentence, and how far it reaches."""
    return f"{report.relation.sentence} {report.reach()}".rstrip()


def next_step(report: "CompareReport") -> NextStep:
    """Advise what the closer of the two reports advises."""
    parents, sparsity = report.parents, report.sparsity
    if parents.verdict in ("unrelated", "undecided"):
        more = ", or read everything in exact mode" if parents.values_compared and parents.unseen is not None else ""
        model = parents.checkpoint.ref
        return NextStep(f"Compare {model} with other models of the same architecture{more}.", "dtype", model)
    return sparsity.next_step() if sparsity is not None and parents.verdict == "derived" else parents.next_step()


def sentence(parents: "ParentsReport", sparsity: "SparsityReport | None", direction: str | None) -> str:
    """Say what the models are to each other, and claim no more than the two reports do."""
    best, others = parents.candidates[0], [row for row in parents.candidates if row.ref not in parents.parents]
    model, named, *_ = distinct_names([parents.checkpoint, *parents.candidates])
    if parents.verdict == "unrelated":
        more = ["This says nothing about how those are related to each other."] if len(others) > 1 else []
        return " ".join([f"{model} is not related to {listed([row.ref for row in others])}, weight by weight.", *more, *_proposed(parents)])
    said = [_with_subject(model, parents.headline().removesuffix(parents.reach()).rstrip().replace(best.ref, named))]
    changed = changes(sparsity) if sparsity is not None and parents.verdict == "derived" else ""
    if changed and _ANCESTOR in said[0] and len(parents.parents) == 1 and "rank" not in said[0]:
        said = [f"{said[0].partition(_ANCESTOR)[0]}, or both come from a common ancestor: {changed}"]
    elif changed:
        said.append(f"{changed[:1].upper()}{changed[1:]}")
    if sparsity is not None and sparsity.adapter is not None:  # it is known how this model is made
        adapters = [each.ref for each in sparsity.adapter.adapters]
        what = "is an adapter" if len(adapters) == 1 else "are adapters"
        said = [f"{listed(adapters)} {what} of {sparsity.base.ref}. {sparsity.answer.text}"]
        direction = "shown"
    if parents.verdict == "merge" and direction != "shown" and _RUN not in said[0]:
        said.append(_RUN)
    if direction == "assumed":
        said.append(f"{_UNORDERED}: the order is the one given.")
    elif direction is None and parents.verdict in ("derived", "merge", "stack"):
        said.append(f"{_UNORDERED}.")
    said += _proposed(parents)
    akin = [row.ref for row in others if related(row)]
    apart = [row.ref for row in others if row.compared and not related(row)]
    if akin:
        said.append(f"{listed(akin)} {'is' if len(akin) == 1 else 'are'} related too.")
    if apart and parents.verdict != "undecided":
        said.append(f"No relation to {listed(apart)} was found.")
    return " ".join(said)


def _proposed(parents: "ParentsReport") -> list[str]:
    """Say where the candidates come from if the request names none."""
    by_source = {source: [row.ref for row in parents.candidates if row.source == source] for source in ("card", "library")}
    parts = [f"{listed(by_source['card'])}, named by its card"] if by_source["card"] else []
    parts += [f"{listed(by_source['library'])} of the library, for tensors of the same shapes"] if by_source["library"] else []
    return [f"It was compared with {', and with '.join(parts)}."] if parts else []


def changes(report: "SparsityReport") -> str:
    """Say what fraction of the weights changed from the base to the last model."""
    first, *_, last = distinct_names([report.base, *report.tuned])
    way, counted = f"from {first} to {last}", report.update_fraction
    if counted is None:
        return ""
    if report.num_changed in (0, report.values_compared):  # of a sample, such a share would be more than it shows
        return f"{way}: {report.answer.text}"
    compared = "" if report.whole else " compared"
    if report.interval is None:
        return f"{way}, {share(counted)} of the weights{compared} changed at bf16 resolution."
    low, high = share(1 - report.interval.high), share(1 - report.interval.low)
    return f"{way}, about {share(counted)} of the weights{compared} changed at bf16 resolution (95% interval: {low} to {high})."


def _with_subject(model: str, statement: str) -> str:
    for beginning, predicate in _WITH_SUBJECT.items():
        if statement.startswith(beginning):
            return f"{model} {predicate}{statement.removeprefix(beginning)}"
    return f"{model}: {statement}"
