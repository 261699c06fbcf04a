"""Ranks the quantized copies of one model by their error, and by their error for their size."""

from collections.abc import Callable

from analyzers.comparison.compare.report import Copy
from analyzers.comparison.parents.explain import Explanation
from analyzers.comparison.parents.verdict import changed_beside


def ranked(sides: list[int], explain: Callable[[int], Explanation]) -> tuple[int | None, tuple[Copy, ...]]:
    """Return the nearest of several quantized copies of one model, and a row for each of them, the nearest first.

    sides: those with quantized tensors. Returns no rows, and None if no two sides are quantized or none is a copy, if fewer than two are
    copies of the same other side.
    """
    copies = {side: facts for side in sides if _is_copy(facts := explain(side))}
    sources = [facts.best for facts in copies.values()]
    source = max(sources, key=sources.count, default=-1)
    rows = {side: _row(facts) for side, facts in copies.items() if facts.best == source}
    if len(rows) < 2:
        return (next(iter(rows), None) if len(sides) > 1 else None), ()
    least = min(row.for_its_size for row in rows.values()) or 1.0
    order = sorted(rows, key=lambda side: rows[side].error)
    return order[0], tuple(rows[side].model_copy(update={"for_its_size": rows[side].for_its_size / least}) for side in order)


def _is_copy(facts: Explanation) -> bool:
    """Return whether a side is a quantized copy of another one, and not of a model trained from it."""
    return facts.copy is not None and 2 * facts.copy.share > 1 and not changed_beside(facts)


def _row(facts: Explanation) -> Copy:
    copy, model = facts.quantized, facts.model
    assert copy is not None and facts.copy is not None
    bits, error = 8 * model.bytes / max(1, model.parameters), facts.copy.distance() or 0.0
    return Copy(
        ref=model.ref,
        method=copy.method,
        bytes=model.bytes,
        bits_per_weight=bits,
        error=error,
        within_half_step=copy.within_half_step,
        ratio=copy.ratio,
        for_its_size=error * 2.0**bits,
        not_source=len(copy.not_source),
    )
