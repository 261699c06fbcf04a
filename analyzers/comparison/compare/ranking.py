"""Ranks the quantized copies of one model by their error, and by their error for their size."""

from collections.abc import Callable

from analyzers.comparison.compare.report import Copy
from analyzers.comparison.parents.explain import Explanation


def ranked(sides: list[int], explain: Callable[[int], Explanation]) -> tuple[int | None, tuple[Copy, ...]]:
    """Return the nearest of several quantized copies of one model, and a row for each of them, the nearest first.

    sides: those with quantized tensors. Returns None and no rows if fewer than two are copies of the same other side.
    """
    copies = {side: facts for side in sides if (facts := explain(side)).copy is not None and 2 * facts.copy.share > 1}
    sources = [facts.best for facts in copies.values()]
    source = max(sources, key=sources.count, default=-1)
    rows = {side: _row(facts) for side, facts in copies.items() if facts.best == source}
    if len(rows) < 2:
        return None, ()
    least = min(row.for_its_size for row in rows.values()) or 1.0
    order = sorted(rows, key=lambda side: rows[side].error)
    return order[0], tuple(rows[side].model_copy(update={"for_its_size": rows[side].for_its_size / least}) for side in order)


def _row(facts: Explanation) -> Copy:
    copy, model = facts.quantized, facts.model
    assert copy is not None
    bits, error = 8 * model.bytes / max(1, model.parameters), facts.candidates[0].distance or 0.0
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
