"""Stores labels and flags in the database: added once, replaced but never deleted, imported from the dataset."""

import sqlite3
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from analyzers.core import limits
from analyzers.core.errors import InvalidRequest, LimitExceeded
from analyzers.core.terminal import plural
from analyzers.core.untrusted_json import parse_model
from components.library import model_rows
from components.library.consensus import COLUMNS, LabelRow, label_row
from components.library.database import ORDERS, insert
from components.library.item_checks import after, now, timestamp
from components.library.list_query import List
from components.library.schema import DECISIONS, FLAG_REASONS, HIDE, Flag, Identity, Label

LABELS_PER_HOUR = 300  # The most that one contributor adds in an hour; all those without a login count as one.
LIST = List(
    table="labels",
    columns=COLUMNS,
    row=label_row,
    search="sought",
    same={"model": "model_key", "precision": "precision", "contributor": "contributor", "provenance": "provenance"},
    words={},
    sorts=ORDERS["labels"],
    newest="created",
    facets=("precision",),
)
_HOUR = timedelta(hours=1)
# Times (`time.monotonic`) and addresses (salted hashes) of labels and flags added without a login, in memory only.
_by_address: list[tuple[float, str]] = []


def add_label(connection: sqlite3.Connection, who: Identity, model: str, precision: str, link: str, quote: str) -> Label:
    """Add a label in a write transaction; return the existing label if there is one.

    Raises InvalidRequest and pydantic's ValidationError for invalid labels, InvalidRequest for one that is hidden, LimitExceeded.
    """
    hidden = "SELECT 1 FROM labels WHERE model_key = ? AND contributor = ? AND provenance = ? AND precision = ? AND flags >= ?"
    if connection.execute(hidden, (model.lower(), who.name, who.provenance, precision, limits.FLAGS)).fetchone() is not None:
        raise InvalidRequest(
            f"Your label {precision} of this model was hidden, by flags or by a moderator, and stays hidden, whatever its evidence: "
            "only a moderator can show it again."
        )
    before = _current(connection, model.lower(), who)
    if before is not None and (before.precision, before.evidence_link, before.evidence_quote) == (precision, link, quote):
        return before
    created = now() if before is None else after(now(), before.created)
    label = Label.of(who, model, precision, link, quote, created=created, replaces=before.id if before else "")
    check_rate(connection, who)
    take_labels(connection, [label], "")
    return label


def take_labels(connection: sqlite3.Connection, labels: Iterable[Label], published: str) -> int:
    """Insert new labels and mark known ones as published; return the number of new labels.

    published: the dataset's commit with them, or "".
    """
    new = []
    for label in labels:
        facts = label.model_dump(include={"id", "model", "precision", "contributor", "provenance", "created"})
        facts |= {"model_key": label.model.lower(), "record": label.model_dump_json(), "current": True}
        facts["sought"] = " ".join((label.model, label.contributor, label.evidence_link, label.evidence_quote)).lower()
        if insert(connection, "labels", facts, published) is not None:
            _count_flags(connection, label)
            new.append(label)
    for key in dict.fromkeys(label.model.lower() for label in new):
        model_rows.refresh(connection, key)
    return len(new)


def add_flag(connection: sqlite3.Connection, who: Identity, label_id: str, reason: str, text: str) -> Flag:
    """Add a flag in a write transaction; a contributor's second flag returns the first. Raises the errors of `add_label`."""
    if connection.execute("SELECT 1 FROM labels WHERE id = ?", (label_id,)).fetchone() is None:
        raise InvalidRequest("This label no longer exists: reload the page.")
    if reason in DECISIONS and not who.moderates:
        raise InvalidRequest("Only moderators, logged in, decide whether a label is shown.")
    flag = Flag.of(who, label_id, reason, text, created=now())
    row = connection.execute("SELECT record FROM flags WHERE id = ?", (flag.id,)).fetchone()
    if row is not None:
        return parse_model(Flag, row[0])
    check_rate(connection, who)
    take_flags(connection, [flag], "")
    return flag


def take_flags(connection: sqlite3.Connection, flags: Iterable[Flag], published: str) -> int:
    """Insert new flags like `take_labels`. A flag may arrive before its label."""
    new = 0
    for flag in flags:
        facts = flag.model_dump(include={"id", "label", "contributor", "provenance", "created"}) | {"record": flag.model_dump_json()}
        if insert(connection, "flags", facts, published) is not None:
            new += 1
            if (row := find(connection, flag.label)) is not None:
                _count_flags(connection, row.label)
                model_rows.refresh(connection, row.label.model.lower())
    return new


def check_rate(connection: sqlite3.Connection, who: Identity) -> None:
    """Raise LimitExceeded if a contributor added LABELS_PER_HOUR labels and flags within an hour, or an address LABELS_PER_ADDRESS."""
    now, local = datetime.now(UTC), who.provenance == "local"
    recent = "created > ? AND created <= ? AND provenance = ? AND (? OR contributor = ?)"  # made while a clock was ahead: not counted
    both = f"SELECT created FROM labels WHERE {recent} UNION ALL SELECT created FROM flags WHERE {recent}"  # noqa: S608 - our own names
    values = 2 * (timestamp(now - _HOUR), timestamp(now), who.provenance, local, who.name)
    full = connection.execute(f"{both} ORDER BY 1 DESC LIMIT 1 OFFSET ?", (*values, LABELS_PER_HOUR - 1)).fetchone()
    if who.provenance != "seed" and full is not None:
        added = f"{LABELS_PER_HOUR:,} labels and flags were added within an hour"
        raise LimitExceeded(_later(added, datetime.fromisoformat(full[0]) + _HOUR - now, local))
    if who.address:
        at = time.monotonic()
        _by_address[:] = [(when, address) for when, address in _by_address if when > at - _HOUR.total_seconds()]
        times = [when for when, address in _by_address if address == who.address]
        if len(times) >= limits.LABELS_PER_ADDRESS:
            added = (
                f"{limits.LABELS_PER_ADDRESS:,} labels and flags were added from this address within an hour (MANTISSA_LABELS_PER_ADDRESS)"
            )
            raise LimitExceeded(_later(added, timedelta(seconds=times[-limits.LABELS_PER_ADDRESS] - at) + _HOUR, local))
        _by_address.append((at, who.address))


def _later(added: str, wait: timedelta, local: bool) -> str:
    return f"{added}: continue in {plural(-(-wait // timedelta(minutes=1)), 'minute')}{', or log in' if local else ''}."


def labels_of(connection: sqlite3.Connection, key: str, *, current: bool) -> list[LabelRow]:
    """Return the labels of a model by its lower-case id, the newest first."""
    only = " AND current" if current else ""
    asked = f"SELECT {COLUMNS} FROM labels WHERE model_key = ?{only} ORDER BY created DESC, id DESC LIMIT 1000"  # noqa: S608 - our own names
    return [label_row(row) for row in connection.execute(asked, (key,))]


def find(connection: sqlite3.Connection, label_id: str) -> LabelRow | None:
    """Find a label by its id; None if there is none."""
    row = connection.execute(f"SELECT {COLUMNS} FROM labels WHERE id = ?", (label_id,)).fetchone()  # noqa: S608 - our own names
    return None if row is None else label_row(row)


def flags_of(connection: sqlite3.Connection, label_id: str) -> list[Flag]:
    """Return the flags of a label, the oldest first."""
    asked = "SELECT record FROM flags WHERE label = ? ORDER BY created, id LIMIT 1000"
    return [parse_model(Flag, row[0]) for row in connection.execute(asked, (label_id,))]


def commit_of_flag(connection: sqlite3.Connection, flag_id: str) -> str:
    """Return the dataset's commit with a flag, or ""."""
    return str(connection.execute("SELECT published FROM flags WHERE id = ?", (flag_id,)).fetchone()[0])


def _current(connection: sqlite3.Connection, key: str, who: Identity) -> Label | None:
    row = connection.execute(
        "SELECT record FROM labels WHERE model_key = ? AND contributor = ? AND provenance = ? AND current", (key, who.name, who.provenance)
    ).fetchone()
    return None if row is None else parse_model(Label, row[0])


def _count_flags(connection: sqlite3.Connection, label: Label) -> None:
    """Count the flags of ``label``, and determine which label of its contributor for its model is current.

    The newest decision of a moderator overrides the flags of others: the count becomes 0, or at least FLAGS. A label with FLAGS flags is
    hidden.
    """
    flags = [flag for flag in flags_of(connection, label.id) if flag.provenance == "login"]
    decisions = [flag.reason for flag in flags if flag.reason in DECISIONS and Identity.login(flag.contributor).moderates]
    counted = sum(flag.reason in FLAG_REASONS for flag in flags)
    if decisions:
        counted = max(counted, limits.FLAGS) if decisions[-1] == HIDE else 0
    connection.execute("UPDATE labels SET flags = ? WHERE id = ?", (counted, label.id))
    # The newest label of a contributor is current; of two with the same time, the one with the greater id, on every machine.
    connection.execute(
        "UPDATE labels SET current = (flags < :flags AND id = (SELECT id FROM labels INDEXED BY labels_model WHERE model_key = :model "
        "AND contributor = :contributor AND provenance = :provenance ORDER BY created DESC, id DESC LIMIT 1)) "
        "WHERE model_key = :model AND contributor = :contributor AND provenance = :provenance",
        {"model": label.model.lower(), "contributor": label.contributor, "provenance": label.provenance, "flags": limits.FLAGS},
    )
