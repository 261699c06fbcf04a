"""Exports the library as files: Parquet, CSV without formulas, JSON lines; and the classifier's training set."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzers.core.atomic_files import replacing
from analyzers.core.errors import InvalidRequest
from analyzers.core.tables import safe
from analyzers.dtype.labelled_models import MAGNITUDES, labelled_extremes, precision_of

if TYPE_CHECKING:
    import pandas

_EVERY = 10**9
Lists = Mapping[str, Callable[..., list[Any]]]


def export(folder: Path, kind: str, form: str, lists: Lists) -> Path:
    """Write ``mantissa-KIND.FORM`` into ``folder``. lists: functions that return every item of a kind. See `Library.export`."""
    if (kind not in lists or form not in ("parquet", "csv", "jsonl")) and (kind, form) != ("training", "csv"):
        raise InvalidRequest("The library is exported as labels, results or models, in the format parquet, csv or jsonl.")
    frame = training_set(lists) if kind == "training" else _frame(lists[kind]("", _EVERY))
    folder.mkdir(exist_ok=True)
    with replacing(path := folder / f"mantissa-{kind}.{form}") as file:
        if form == "csv":
            texts = frame.select_dtypes(exclude="number").columns
            frame[texts] = frame[texts].map(lambda value: safe(value) if isinstance(value, str) else value)
            frame.to_csv(file, index=False)
        elif form == "jsonl":
            frame.to_json(file, orient="records", lines=True, force_ascii=True)
        else:
            frame.to_parquet(file, index=False)
    return path


def training_set(lists: Lists) -> "pandas.DataFrame":
    """Return the labels that the classifier can be fitted on: one row per model with a consensus and extremes.

    Extremes are those of the reference table, which are left empty, or of the newest exact passport with a row for every tensor.
    """
    import pandas

    known = {each.model.lower() for each in labelled_extremes()}
    measured: dict[str, dict[str, float]] = {}
    for row in lists["results"]("dtype", _EVERY):
        if row.abs_max is not None and row.analyzer == "dtype":
            measured.setdefault(row.models[0].lower(), {name: getattr(row, name) for name in MAGNITUDES})
    rows = []
    for row in sorted(lists["models"]("", _EVERY), key=lambda row: row.model.lower()):
        if precision_of(row.precision) and (row.model.lower() in known or row.model.lower() in measured):
            figures = {} if row.model.lower() in known else measured[row.model.lower()]
            rows.append({"model_id": row.model, "training_precision": row.precision, **figures})
    return pandas.DataFrame(rows, columns=["model_id", "training_precision", *MAGNITUDES])


def _frame(items: list[Any]) -> "pandas.DataFrame":
    import pandas

    rows = [item.model_dump(exclude={"version"}) for item in items]
    return pandas.DataFrame([{name: " ".join(value) if isinstance(value, tuple) else value for name, value in row.items()} for row in rows])
