"""Several models in one table, one row each: what is stored, proven, inferred, and how large the weights are."""

from collections.abc import Sequence

from components.passport.form import permalink
from components.passport.outcomes import Outcome, reports_of
from components.passport.tiles import answers
from components.text import numbers
from components.text.plain_text import html, prose

_HEAD = ("", "Model", "Stored", "Passed through", "Trained in", "In fp16", "abs min", "abs max", "norm min", "norm max", "Parameters")
# From here on columns hold numbers.
_NUMERIC = 6


def comparison(asked: Sequence[str], outcomes: Sequence[Outcome], rest: str = "waiting", anchors: bool = False) -> str:
    """The table of the models ``asked`` for, of which the first have ``outcomes``; the others say ``rest``.

    A model's name links to its report: to its permalink, or with ``anchors`` to ``#report-1``, ``#report-2``... on the same page, by row.
    """
    head = "".join(f'<th scope="col"{_class(i)}>{name}</th>' for i, name in enumerate(_HEAD))
    rows = []
    for index, model in enumerate(asked):
        outcome = outcomes[index] if index < len(outcomes) else None
        if outcome is not None and outcome.report is not None:
            rows.append(_row(index, outcome, f"#report-{index + 1}" if anchors else permalink(outcome.report)))
        else:
            rows.append(_failed(index, model, outcome.error) if outcome else _pending(index, model, rest))
    caption = "Seen in samples: abs max is at least, abs min at most what is given; norms are scaled up."
    sampled = any(not report.extremes.exact for report in reports_of(outcomes))
    note = f'<p class="m-caption m-below">{caption}</p>' if sampled else ""
    return (
        '<div class="m-scroll m-compare" tabindex="0" role="group" aria-label="Models compared"><table class="m-table m-stacked">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>{note}"
    )


def _row(index: int, outcome: Outcome, address: str) -> str:
    report = outcome.report
    assert report is not None
    stored, passed, trained, risk = answers(report)
    extremes = report.extremes
    magnitudes = (extremes.abs_min, extremes.abs_max, extremes.norm_min, extremes.norm_max)
    name = f'<a href="{html(address, len(address))}" data-row="{index}">{html(report.checkpoint.ref, 70)}</a>'
    cells = [*map(html, (stored, passed, trained, risk)), *map(numbers.magnitude, magnitudes)]
    cells.append(numbers.parameters(report.checkpoint.parameters))
    return _tr(index, name, "".join(f'<td{_class(i)} data-title="{_HEAD[i]}">{cell}</td>' for i, cell in enumerate(cells, 2)))


def _pending(index: int, model: str, said: str) -> str:
    return _tr(index, html(model, 70), f'<td colspan="{len(_HEAD) - 2}" class="m-dim">{html(said)}</td>')


def _failed(index: int, model: str, error: str) -> str:
    """The sentence stands under the name, where a narrow screen shows it without scrolling."""
    said = f'{html(model, 70)}<p class="m-failed">{prose(error)}</p>'
    return _tr(index, said, "", f' colspan="{len(_HEAD) - 1}"')


def _tr(index: int, name: str, cells: str, span: str = "") -> str:
    return f'<tr><td class="m-n">{index + 1}</td><th scope="row" class="m-name"{span}>{name}</th>{cells}</tr>'


def _class(column: int) -> str:
    return ' class="m-n"' if column >= _NUMERIC else ""
