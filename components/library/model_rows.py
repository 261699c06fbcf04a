"""Keeps one row per model with a label or a result, for badges and lists. Every write updates it."""

import sqlite3
from functools import cache
from typing import Any

from analyzers.core.records import Record
from analyzers.dtype_detection.labelled_models import Example, labelled_extremes
from analyzers.dtype_detection.report import ANALYSIS_VERSION
from components.library.consensus import COLUMNS as LABEL_COLUMNS
from components.library.consensus import consensus, label_row
from components.library.database import ORDERS
from components.library.list_query import List

MOST = 1_000  # most models of one organisation
_STORED = (
    "model, storage, passed_through, trained_in, fp16_risk, result, commit_id, precision, contributors, disputed, labels, results, "
    "updated, own, proposed, evidence, bytes, wasted"
)
_OF_RESULT = "(SELECT json_extract(record, '$.{}') FROM results WHERE results.id = models.result)"
_FIGURES = ("abs_max", "norm_min", "norm_max")
COLUMNS = ", ".join((_STORED, *(_OF_RESULT.format(name) for name in ("reach", *_FIGURES, "analysis_version"))))


class ModelRow(Record):
    """A model with its newest facts.

    storage to commit: from its newest dtype result of the whole checkpoint, or empty; result is the id of that result. precision: the
    consensus. contributors: how many agree with ``precision``. labels: number of current labels; results: number of results of any analyzer
    with this subject. updated: time of the newest label or result. own: ``precision`` has no login behind it, in the visitor's own app.
    proposed: precisions of labels that do not count. evidence: for ``precision``. bytes: of its files; wasted: of these, what could be
    saved without changing a value, from its newest check or passport. reach: that of the dtype result, and its version if that is outdated.
    abs_max to norm_max: of the base model's weights, "measured" in full by the dtype result, or "published" (``figures``, "" for neither).
    """

    model: str
    storage: str
    passed_through: str
    trained_in: str
    fp16_risk: str
    result: str
    commit: str
    precision: str
    contributors: int
    disputed: bool
    labels: int
    results: int
    updated: str
    own: bool = False
    proposed: str = ""
    evidence: str = ""
    bytes: int | None = None
    wasted: int | None = None
    reach: str
    abs_max: float | None = None
    norm_min: float | None = None
    norm_max: float | None = None
    figures: str = ""


def model_row(row: Any) -> ModelRow:
    """Build a model's row from the columns `COLUMNS`."""
    return ModelRow.model_construct(**facts(row))


def facts(row: Any) -> dict[str, Any]:
    """Return the fields of a row of `COLUMNS`. Inferences of an outdated analysis are omitted; its other answers name the version."""
    *values, version = row
    made = dict(zip(ModelRow.model_fields, (*values, ""), strict=True))
    made |= {"disputed": bool(made["disputed"]), "own": bool(made["own"]), "reach": (reach := made["reach"] or "")}
    if made["abs_max"] is not None:
        made["figures"] = "measured"
    elif (published := _published().get(made["model"].lower())) is not None:
        made |= {name: getattr(published, name) for name in _FIGURES} | {"figures": "published"}
    if version is None or version >= ANALYSIS_VERSION:
        return made
    return made | {"trained_in": "", "reach": f"{reach}, analysis version {version}".removeprefix(", ")}


LIST = List(
    table="models",
    columns=COLUMNS,
    row=model_row,
    search="model_key",
    same={"model": "model_key", "precision": "precision", "trained_in": "trained_in", "fp16_risk": "fp16_risk"},
    words={"storage": "storage", "passed_through": "passed_through"},
    sorts=ORDERS["models"],
    newest="updated",
    facets=("precision", "storage", "passed_through", "trained_in", "fp16_risk"),
    scope="model_key NOT GLOB 'sample:*'",  # built-in samples have results, but are not models of anyone
)


def find(connection: sqlite3.Connection, key: str) -> ModelRow | None:
    """Return the row of a model by its lower-case id; None if there is none."""
    row = connection.execute(f"SELECT {COLUMNS} FROM models WHERE model_key = ?", (key,)).fetchone()  # noqa: S608 - our own names
    return None if row is None else model_row(row)


def of_organisation(connection: sqlite3.Connection, key: str) -> list[ModelRow]:
    """Return the rows of the models of an organisation, by its lower-case name; MOST at most, in the order of their ids."""
    asked = f"SELECT {COLUMNS} FROM models WHERE model_key >= ? AND model_key < ? ORDER BY model_key LIMIT ?"  # noqa: S608 - our own names
    return [model_row(row) for row in connection.execute(asked, (f"{key}/", f"{key}0", MOST))]  # "0" follows "/"


def refresh_all(connection: sqlite3.Connection) -> None:
    """Recompute all rows."""
    for (key,) in connection.execute("SELECT model_key FROM labels UNION SELECT model_key FROM results").fetchall():
        refresh(connection, key)


def published_figures(connection: sqlite3.Connection) -> int:
    """Count the models here whose figures are published."""
    keys = list(_published())
    asked = f"SELECT COUNT(*) FROM models WHERE model_key IN ({', '.join('?' * len(keys))})"  # noqa: S608 - placeholders
    (count,) = connection.execute(asked, keys).fetchone()
    return int(count)


@cache
def _published() -> dict[str, Example]:
    return {each.model.lower(): each for each in labelled_extremes()}


def refresh(connection: sqlite3.Connection, key: str) -> None:
    """Recompute the row of a model from its labels and results."""
    rows = connection.execute(f"SELECT {LABEL_COLUMNS} FROM labels WHERE model_key = ? AND current", (key,)).fetchall()  # noqa: S608
    labels = [label_row(row) for row in rows]
    found = consensus(key, labels)
    asked = "SELECT COUNT(*), MAX(created), MAX(model) FROM results WHERE model_key = ?"
    results, newest, other = connection.execute(asked, (key,)).fetchone()
    shown = connection.execute(
        "SELECT model, storage, passed_through, trained_in, fp16_risk, id, json_extract(record, '$.commits[0]') FROM results "
        "WHERE model_key = ? AND analyzer = 'dtype' AND overview ORDER BY created DESC LIMIT 1",
        (key,),
    ).fetchone()
    if not labels and not results:
        connection.execute("DELETE FROM models WHERE model_key = ?", (key,))
        return
    # A report has the Hub's own spelling, a label has the contributor's.
    model = shown[0] if shown else other or labels[0].label.model
    facts = shown[1:] if shown else ("",) * 6
    updated = max([newest or "", *(row.label.created for row in labels)])
    saved = connection.execute(
        "SELECT bytes, wasted FROM results WHERE model_key = ? AND wasted IS NOT NULL "
        "ORDER BY analyzer = 'check' DESC, created DESC LIMIT 1",
        (key,),
    ).fetchone()
    values = (*facts, found.precision or "", found.contributors, found.disputed, len(labels), results, updated)
    values += (found.own, " ".join(found.proposed), found.evidence, *(saved or (None, None)))
    connection.execute(
        f"INSERT INTO models (model_key, {_STORED}) VALUES (?{', ?' * 18}) ON CONFLICT (model_key) DO UPDATE SET "  # noqa: S608
        + ", ".join(f"{name} = excluded.{name}" for name in _STORED.split(", ")),
        (key, model, *values),
    )
    connection.execute("UPDATE labels SET disputed = ? WHERE model_key = ? AND disputed <> ?", (found.disputed, key, found.disputed))
