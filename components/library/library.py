"""Implements the library: the interface of pages, badges, links and commands to the database and to its dataset on the Hub, if any."""

import secrets
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from pydantic import ValidationError

from analyzers.core import limits
from analyzers.core.errors import InvalidRequest, LibraryUnavailable
from analyzers.core.report import Report
from analyzers.core.request import request_error
from analyzers.core.untrusted_json import parse_json
from components.library import label_rows, model_rows, result_rows, same_shapes, short_links
from components.library.availability import Availability
from components.library.backups import Backups
from components.library.consensus import Consensus, LabelRow, consensus
from components.library.counts import counts, refused
from components.library.database import DAMAGED, FULL, READ_ONLY, Database
from components.library.export_files import export
from components.library.initial_labels import GATHERED, seed_labels
from components.library.item_checks import evidence_of, hub_id, now, one_line
from components.library.library_status import Counts, LibraryState, Saved, state_of
from components.library.list_query import List, Page, Query, facets, page_of
from components.library.model_rows import ModelRow
from components.library.publisher import Publisher
from components.library.result_rows import ResultRow
from components.library.schema import Flag, Identity, Label, Result
from components.library.storable_reports import adapters_of, storable

Item = TypeVar("Item")
_Asked = ParamSpec("_Asked")

_ADAPTER_RESULTS = 20  # Newest results of each analyzer that are searched for adapters of a model, since their reports are read.
_LISTS: dict[str, List[Any]] = {"labels": label_rows.LIST, "results": result_rows.LIST, "models": model_rows.LIST}


class Library:
    """Labels and results in a folder, opened by `open`. Safe to use from several threads and by several processes at once."""

    def __init__(self, folder: Path, database: Database, publisher: Publisher | None, ephemeral: bool) -> None:
        self._database = database
        self._publisher = publisher
        self._availability = publisher.availability if publisher else Availability(database)
        self._ephemeral = ephemeral
        self._backups = Backups(database, folder)

    @classmethod
    def open(
        cls,
        folder: Path,
        dataset: str = "",
        *,
        token: str | None = None,
        ephemeral: bool | None = None,
        own: bool | None = False,
        background: bool = True,
    ) -> Self:
        """Open the library in ``folder``, created and seeded if necessary.

        dataset: the id of its dataset repository, "" for none; token: may write the dataset. ephemeral: the disk does not survive a
        restart, so a label is published before it is acknowledged, and no backups are made. own: the app belongs to its only visitor, whose
        labels count without a login; elsewhere they are proposals; None: as before. background: restore, publish and back up in
        threads, until `close`. A folder that may not be written is opened read-only. Raises LibraryUnavailable, and InvalidRequest for an
        invalid id.
        """
        try:
            if dataset:
                hub_id(dataset)
        except InvalidRequest:
            raise InvalidRequest(
                f"MANTISSA_DATASET is {dataset[:100]!r}, which is not the id of a dataset: give org/name, as in its address on the Hub."
            ) from None
        database = Database(folder)
        try:
            if not database.read_only:
                _seed(database, own and not dataset)
            publisher = Publisher(database, dataset, token) if dataset and not database.read_only else None
            opened = cls(folder, database, publisher, bool(ephemeral))
        except BaseException:
            database.close()
            raise
        if background and not database.read_only:
            if publisher is not None:
                publisher.start()
            if not ephemeral:
                opened._backups.start()
        return opened

    def close(self) -> None:
        """Stop publishing and close the file. Idempotent. Unpublished items are published when the library is next opened."""
        if self._publisher is not None:
            self._publisher.close()
        self._backups.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_restored(self, timeout: float) -> bool:
        """Wait for at most ``timeout`` seconds until the dataset has been read; return whether it has."""
        return self._publisher is None or self._publisher.restored.wait(timeout)

    def publish(self) -> None:
        """Read new items of the dataset and publish new local ones, immediately. Raises HubError, AccessDenied, CheckpointNotFound."""
        if self._publisher is not None:
            self._publisher.turn()

    def publish_last(self) -> None:
        """Publish new local items immediately before the program ends, however long the Hub asks to wait.

        Raises the errors of `publish`.
        """
        if self._publisher is not None:
            self._publisher.publish_last()

    def local_identity(self, session: str = "", address: str = "") -> Identity:
        """Return the identity of a visitor without a login: one for all, or one per browser secret, of which a salted hash is stored.

        address: a hash of the visitor's address, for the hourly limit.
        """
        return Identity.local(f"{self._ask(_salt)} {session}", address)

    # Contributions

    def add_label(self, model: str, precision: str, evidence: str, who: Identity, quote: str = "") -> Saved[Label]:
        """Add the label of ``who`` that ``model`` was trained in ``precision``; return the existing label if there is one.

        model: the canonical id of a repository that is not private, checked by the caller. evidence: a link (http, https), never fetched,
        or where ``quote`` stands, see `evidence_of`. Raises InvalidRequest, LimitExceeded, LibraryUnavailable.
        """
        link, said = evidence_of(evidence, quote)
        label = self._write(lambda connection: label_rows.add_label(connection, who, hub_id(model.strip()), precision, link, said))
        note = self._publish_at_once()
        row = self.label(label.id)
        assert row is not None
        said = "" if row.commit else note
        return Saved[Label](item=row.label, state=state_of(row.commit), commit=row.commit, note=said, proposal=row.proposal)

    def check_label(self, model: str, precision: str, evidence: str, who: Identity, quote: str = "") -> None:
        """Raise InvalidRequest for a label that `add_label` would refuse, whether or not the model exists."""
        link, said = evidence_of(evidence, quote)
        try:
            Label.of(who, hub_id(model.strip()), precision, link, said, created=now())
        except ValidationError as error:
            raise request_error(error) from None

    def add_flag(self, label_id: str, reason: str, who: Identity, text: str = "") -> Saved[Flag]:
        """Flag a label, once per contributor, or decide about it as a moderator, with one of `DECISIONS`.

        Raises InvalidRequest, LimitExceeded, LibraryUnavailable.
        """
        said = one_line(text, limits.EVIDENCE_QUOTE_LENGTH, "text")
        flag = self._write(lambda connection: label_rows.add_flag(connection, who, label_id, reason, said))
        note = self._publish_at_once()
        commit = self._ask(label_rows.commit_of_flag, flag.id)
        return Saved[Flag](item=flag, state=state_of(commit), commit=commit, note="" if commit else note)

    def add_result(self, report: Report, key: str = "", *, public: bool, contributor: str = "", created: str = "") -> Saved[Result] | None:
        """Store a report on public checkpoints and public data; any other report is not stored, and the result is None.

        key: 64 hex digits, for `find`. public: the caller's judgement; the report must agree. created: when the report was made, by default
        now. An existing result with this id is not replaced. Raises LibraryUnavailable.
        """
        stored = storable(report, key=key, created=created or now(), contributor=contributor) if public else None
        if stored is None:
            return None
        row = self._write(lambda connection: result_rows.add_result(connection, *stored))
        return Saved[Result](item=row.result, state=state_of(row.commit), commit=row.commit)

    # Questions

    def result(self, result_id: str) -> bytes | None:
        """Return the JSON of a result, exactly as it was stored; None if there is none."""
        return self._ask(result_rows.report, result_id)

    def result_row(self, result_id: str) -> ResultRow | None:
        """Return the row of a result in lists; None if there is none."""
        return next(iter(self._ask(result_rows.find, "id", result_id)), None)

    def short_code(self, result_id: str) -> str:
        """Return the code of a result in short links, 10 characters or a few more (see `short_links`)."""
        return self._ask(short_links.code_of, result_id)

    def of_short_code(self, code: str) -> str | None:
        """Return the id of the result that a short link names; None if there is none."""
        return self._ask(short_links.find, code)

    def is_available(self, models: Sequence[str]) -> bool:
        """Return whether these repositories are still public; withdraw results of those that are not.

        May ask the Hub, for 3 seconds each.
        """
        return self._availability.look(models)

    def find(self, key: str) -> tuple[ResultRow, ...]:
        """Return the results that were added with this key, the newest first; `result_rows.SAME_KEY` at most.

        A key read from the dataset is only a claim of its row: compare it with that of the report.
        """
        return self._ask(result_rows.find, "key", key)

    def shapes(self, model: str) -> str:
        """Return the fingerprint of the shapes of a model's tensors, from its newest passport, or "" (see `same_shapes.fingerprint`)."""
        return self._ask(same_shapes.shapes_of_model, model)

    def alike(self, fingerprint: str, model: str, most: int) -> list[str]:
        """Return other models than ``model`` whose tensors have these shapes and that are still public, the newest first.

        May ask the Hub.
        """
        models = self._ask(same_shapes.models_of_same_shapes, fingerprint, model, most)
        return [name for name in models if self.is_available([name])]

    def naming(self, analyzer: str, model: str, most: int) -> list[str]:
        """Return the ids of the newest results of ``analyzer`` in which ``model`` occurs (case-insensitive), other than as the subject."""
        return self._ask(result_rows.naming, analyzer, model.lower(), most)

    def adapters(self, model: str) -> tuple[str, ...]:
        """Return the adapters of ``model`` among its newest results, the newest first."""
        found: dict[str, None] = {}
        for analyzer in ("check", "sparsity", "compare"):
            for identifier in self.naming(analyzer, model, _ADAPTER_RESULTS):
                stored = self.result(identifier)
                if stored is not None:
                    found |= dict.fromkeys(adapters_of(parse_json(stored), model.lower()))
        return tuple(found)

    def label(self, label_id: str) -> LabelRow | None:
        """Return a label with its state; None if there is none."""
        return self._ask(label_rows.find, label_id)

    def flags(self, label_id: str) -> tuple[Flag, ...]:
        """Return the flags of a label, the oldest first."""
        return tuple(self._ask(label_rows.flags_of, label_id))

    def history(self, model: str) -> tuple[LabelRow, ...]:
        """Return every label of a model, including replaced ones, the newest first; 1,000 at most."""
        return tuple(self._ask(label_rows.labels_of, model.lower(), current=False))

    def consensus(self, model: str) -> Consensus:
        """Return the consensus of the labels of a model (case-insensitive)."""
        return consensus(model, self._ask(label_rows.labels_of, model.lower(), current=True))

    def model(self, ref: str) -> ModelRow | None:
        """Return what is known about a model (case-insensitive); None if it has neither label nor result."""
        return self._ask(model_rows.find, ref.lower())

    def organisation(self, name: str) -> tuple[ModelRow, ...]:
        """Return the models of an organisation (case-insensitive); `model_rows.MOST` at most."""
        return tuple(self._ask(model_rows.of_organisation, name.lower()))

    def labels(self, query: Query) -> Page[LabelRow]:
        """Return a page of the labels. Raises InvalidRequest."""
        return self._ask(page_of, label_rows.LIST, query)

    def results(self, query: Query) -> Page[ResultRow]:
        """Return a page of the results. Raises InvalidRequest."""
        return self._ask(page_of, result_rows.LIST, query)

    def models(self, query: Query) -> Page[ModelRow]:
        """Return a page of the models. Raises InvalidRequest."""
        return self._ask(page_of, model_rows.LIST, query)

    def facets(self, kind: str) -> dict[str, dict[str, int]]:
        """Return the values that occur in a list, with their numbers of rows, for each filter with few values."""
        return self._ask(facets, _LISTS[kind])

    def counts(self) -> Counts:
        """Return the numbers of items."""
        numbers = self._ask(counts)
        return numbers if self._publisher else numbers.model_copy(update={"unpublished": 0})

    def state(self) -> LibraryState:
        """Return the state of the library and its dataset. Raises LibraryUnavailable if its file cannot be read, or was found damaged."""
        if self._database.damaged:
            raise LibraryUnavailable(DAMAGED)
        publisher = self._publisher
        return LibraryState(
            dataset=publisher.dataset if publisher else "",
            restored=publisher is None or publisher.restored.is_set(),
            ephemeral=self._ephemeral,
            head=publisher.head if publisher else "",
            problem=self._problem(),
            quarantined=self._ask(refused),
            own=self._ask(_counts_local_labels),
        )

    def _problem(self) -> str:
        if self._database.read_only or self._database.full:
            return READ_ONLY if self._database.read_only else FULL
        lost = "What is added is lost with the next restart: no dataset is configured (MANTISSA_DATASET)." if self._ephemeral else ""
        publisher = self._publisher
        return (publisher.problem or publisher.overdue() if publisher else lost) or self._backups.problem

    def version(self) -> str:
        """Return a text that changes whenever something is added, as a key for caches."""
        return self._database.version()

    def export(self, folder: Path, kind: str, form: str) -> Path:
        """Write all labels (including replaced ones), results (without their reports), models, or the training set, as one of `FILES`.

        CSV: no cell can be taken for a formula. Raises OSError, InvalidRequest.
        """
        return export(self._database, folder, kind, form)

    def _ask(self, question: Callable[Concatenate[sqlite3.Connection, _Asked], Item], *about: _Asked.args, **named: _Asked.kwargs) -> Item:
        with self._database.read() as connection:
            return question(connection, *about, **named)

    def _write(self, change: Callable[[sqlite3.Connection], Item]) -> Item:
        try:
            with self._database.write() as connection:
                return change(connection)
        except ValidationError as error:
            raise request_error(error) from None

    def _publish_at_once(self) -> str:
        """Publish and wait for it if the disk does not survive a restart. Return why something is not published, or ""."""
        if self._publisher is None:
            return "It is lost with the next restart: no dataset is configured (MANTISSA_DATASET)." if self._ephemeral else ""
        return self._publisher.at_once(limits.PUBLISH_WAIT_SECONDS) if self._ephemeral else ""


def _salt(connection: sqlite3.Connection) -> str:
    return str(connection.execute("SELECT value FROM meta WHERE name = 'salt'").fetchone()[0])


def _counts_local_labels(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM meta WHERE name = 'own' AND value = '1'").fetchone() is not None


def _seed(database: Database, own: bool | None) -> None:
    """Add the secret of this library and the initial labels, unless they exist; count all labels again if others count now."""
    with database.write() as connection:
        former = connection.execute("SELECT value FROM meta WHERE name = 'own'").fetchone()
        if own is not None and former != (value := f"{own:d}",):
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('own', ?)", (value,))
            model_rows.refresh_all(connection)
        connection.execute("INSERT INTO meta VALUES ('salt', ?) ON CONFLICT DO NOTHING", (secrets.token_hex(32),))
        if connection.execute("SELECT 1 FROM meta WHERE name = 'seeded' AND value = ?", (GATHERED,)).fetchone() is None:
            label_rows.take_labels(connection, seed_labels(), "")
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('seeded', ?)", (GATHERED,))
