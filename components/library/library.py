"""Implements the library: the interface of pages, badges, addresses and commands to the items and to their dataset on the Hub, if any."""

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import ValidationError

from analyzers.core import limits
from analyzers.core.errors import InvalidRequest, LimitExceeded, MantissaError
from analyzers.core.formatting import plural
from analyzers.core.records import Record
from analyzers.core.report import Report
from analyzers.core.request import request_error
from analyzers.core.untrusted_json import parse_model
from analyzers.dtype.report import ANALYSIS_VERSION
from components.library.cache import Cache, searched
from components.library.consensus import Consensus, consensus
from components.library.evidence import evidence_of, hub_id
from components.library.export import export
from components.library.folder import Folder, report_path, unpacked
from components.library.hub import Dataset
from components.library.items import OWNER, Identity, Label, ResultRow, just_after, now, timestamp
from components.library.publisher import Publisher
from components.library.result_facts import is_report_of, storable

_Item = TypeVar("_Item", bound=Record)
_CLOSING_SECONDS = 5.0
_HOUR = timedelta(hours=1)
_SAME_KEY = 8  # most results of one key that are considered
_MODELS = Path(__file__).with_name("models.sql").read_text(encoding="utf-8")


class Saved(Record):
    """A saved label. commit: of the dataset, if it was published now; note: why it is not, if there is a dataset."""

    item: Label
    where: Literal["published", "saved here"]
    commit: str = ""
    note: str = ""


class ModelRow(Record):
    """A model with its newest facts.

    storage to reach: of its newest passport, whose id is ``result``, or empty; answer: of that, or else of its newest result; outdated: by
    an earlier version of the analysis. precision: the consensus, with its evidence, the number of contributors who agree, and whether
    labels disagree; own: it is the word of the app's owner alone. labels: number of current labels; results: number of results with this
    subject. updated: time of the newest of either. bytes: of its files; wasted: of these, what could be saved without changing a value,
    from its newest check or passport.
    """

    model: str
    answer: str = ""
    storage: str = ""
    passed_through: str = ""
    trained_in: str = ""
    fp16_risk: str = ""
    reach: str = ""
    result: str = ""
    commit: str = ""
    outdated: bool = False
    precision: str = ""
    contributors: int = 0
    disputed: bool = False
    own: bool = False
    evidence: str = ""
    labels: int = 0
    results: int = 0
    updated: str
    bytes: int | None = None
    wasted: int | None = None


class Counts(Record):
    """The numbers of labels, of their models and contributors, and of results."""

    labels: int
    labelled: int
    contributors: int
    results: int

    @property
    def sentence(self) -> str:
        """Say what the library holds."""
        results = f", and {plural(self.results, 'stored result')}" if self.results else ""
        return f"The library holds the training precision of {plural(self.labelled, 'model')}, each with its evidence{results}."


class LibraryState(Record):
    """The state of the library. dataset: "" for none; restored: everything in the dataset at the start has been read; problem: why nothing
    is read, added or published, as a sentence; backlog: items that wait to be published.
    """

    dataset: str
    restored: bool
    problem: str
    backlog: int


class Library:
    """Labels and results in a folder, for one process. Safe to use from several threads. Methods raise LibraryUnavailable.

    dataset: the id of its dataset repository, "" for none; token: may write the dataset. ephemeral: the disk does not survive a restart.
    background: read and publish in a thread, until `close`; else only in `publish`. Raises InvalidRequest for an invalid id.
    """

    def __init__(
        self, folder: Path, dataset: str = "", token: str | None = None, *, ephemeral: bool = False, background: bool = True
    ) -> None:
        try:
            hub_id(dataset or "org/none")
        except InvalidRequest as error:
            raise error.about("MANTISSA_DATASET") from None
        self._lock, self._ephemeral, self._owner = threading.RLock(), ephemeral, Identity.local()
        self._folder = Folder(folder)
        try:
            self._cache = Cache(self._folder)
        except BaseException:
            self._folder.close()
            raise
        self._publisher: Publisher | None = None
        if dataset:
            self._publisher = Publisher(Dataset(dataset, token), self._folder, self._lock, self._cache.update, background)

    def close(self) -> None:
        """Publish what is left for a few seconds, and close the files."""
        if self._publisher is not None:
            self._publisher.close(_CLOSING_SECONDS)
        self._cache.close()
        self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(self) -> None:
        """Read the dataset and publish everything, immediately. Raises HubError, AccessDenied, CheckpointNotFound."""
        if self._publisher is not None:
            self._publisher.turn()

    def wait_restored(self, seconds: float) -> bool:
        """Wait for at most ``seconds`` until the dataset has been read; return whether it has."""
        return self._publisher is None or self._publisher.restored.wait(seconds)

    # Contributions

    def add_label(self, model: str, precision: str, evidence: str, who: Identity, quote: str = "") -> Saved:
        """Add the label of ``who`` that ``model`` was trained in ``precision``; return the existing label if there is one.

        With a dataset, it is committed to it first, if the Hub takes it within PUBLISH_WAIT_SECONDS; the owner of this app is then known by
        the token's name. model: the canonical id of a repository that is not private, checked by the caller. evidence: a link, never
        fetched, or where ``quote`` stands, see `evidence_of`. Raises InvalidRequest, LimitExceeded, HubUnreachable, AccessDenied.
        """
        if self._publisher is not None and who.name == OWNER:
            if self._owner.name == OWNER:
                self._owner = self._publisher.dataset.owner()
            who = self._owner
        label = self.make_label(model, precision, evidence, who, quote)
        said = (label.model, label.precision, label.evidence_link, label.evidence_quote)
        with self._lock:
            before = self._item(Label, "SELECT item FROM labels WHERE model = ? AND contributor = ?", label.model.lower(), who.name)
            if before and Label.of(who, *said, replaces=before.replaces).id == before.id:
                label = before
            else:
                self._check_rate(who)
                if before:
                    label = Label.of(who, *said, created=just_after(before.created), replaces=before.id)
                self._folder.add_label(label)
                self._cache.update()
        if self._publisher is None:
            return Saved(item=label, where="saved here")
        if self._folder.is_published(label.id):
            return Saved(item=label, where="published")
        if commit := self._publisher.publish_label(label.id, limits.PUBLISH_WAIT_SECONDS):
            return Saved(item=label, where="published", commit=commit)
        why = self._publisher.problem or "The Hub has not answered yet."
        return Saved(item=label, where="saved here", note=f"It will be published later. {why}")

    @staticmethod
    def make_label(model: str, precision: str, evidence: str, who: Identity, quote: str = "") -> Label:
        """Return the label that `add_label` would add first, without adding it. Raises InvalidRequest."""
        link, words = evidence_of(evidence, quote)
        try:
            return Label.of(who, hub_id(model.strip()), precision, link, words)
        except ValidationError as error:
            raise request_error(error) from None

    def _check_rate(self, who: Identity) -> None:
        asked = "SELECT created FROM all_labels WHERE contributor = ? AND created > ? AND created <= ? ORDER BY created DESC LIMIT ?"
        time, most = datetime.now(UTC), limits.LABELS_PER_HOUR
        times = self._cache.read(asked, who.name, timestamp(time - _HOUR), timestamp(time), most)
        if len(times) >= most:
            wait = plural(-(-(datetime.fromisoformat(times[-1]) + _HOUR - time) // timedelta(minutes=1)), "minute")
            raise LimitExceeded(f"{who.name} has added {most:,} labels within an hour (MANTISSA_LABELS_PER_HOUR): continue in {wait}.")

    def add_result(self, report: Report, key: str = "", *, public: bool, created: str = "") -> None:
        """Store a report on public checkpoints and public data; any other is not stored. An existing one is not replaced.

        key: 64 hex digits, for `find`. public: the caller's judgement; the report must agree. created: when it was made, by default now.
        """
        stored = storable(report, key, created or now()) if public else None
        with self._lock:
            if stored is not None and not self._cache.read("SELECT 1 FROM all_results WHERE id = ?", report.id):
                self._folder.add_result(*stored)
                self._cache.update()

    # Questions

    def result(self, identifier: str) -> bytes | None:
        """Return the JSON of a stored report; None if there is none. May read it from the dataset."""
        row = self.result_row(identifier)
        if row is None or (found := self._folder.report(row.id)) is not None or self._publisher is None:
            return None if row is None else found
        try:
            packed = self._publisher.dataset.read_one(report_path(row.id), "main", limits.RESULT_BYTES)
        except MantissaError:
            return None
        text = unpacked(packed)
        if text is None or not is_report_of(row, text):
            return None
        self._folder.keep_report(row.id, packed)
        return text

    def result_row(self, identifier: str) -> ResultRow | None:
        """Return the row of a result; None if there is none."""
        return self._item(ResultRow, "SELECT item FROM results WHERE id = ?", identifier)

    def find(self, key: str) -> tuple[ResultRow, ...]:
        """Return the results that were added with this key, the newest first.

        A key from the dataset is only a claim of its row: compare it with that of the report.
        """
        return tuple(
            self._items(ResultRow, "SELECT item FROM results WHERE key = ? ORDER BY created DESC LIMIT ?", key, _SAME_KEY) * bool(key)
        )

    def newest(self, analyzer: str, model: str) -> ResultRow | None:
        """Return the newest result of an analyzer with this subject (case-insensitive); None if there is none."""
        asked = "SELECT item FROM results WHERE model = ? AND analyzer = ? ORDER BY created DESC LIMIT 1"
        return self._item(ResultRow, asked, model.lower(), analyzer)

    def alike(self, model: str, most: int) -> list[str]:
        """Return other models whose tensors have the same shapes as in the newest passport of ``model``, the newest first."""
        passport = self.newest("dtype", model)
        asked = (
            "SELECT item FROM results WHERE shapes = ? AND model <> ? GROUP BY model HAVING MAX(created) ORDER BY MAX(created) DESC LIMIT ?"
        )
        if passport is None or not passport.shapes:
            return []
        return [row.models[0] for row in self._items(ResultRow, asked, passport.shapes, model.lower(), most)]

    def consensus(self, model: str) -> Consensus:
        """Return the consensus of the labels of a model (case-insensitive)."""
        return consensus(self.labels_of(model))

    def labels_of(self, model: str, *, replaced: bool = False) -> tuple[Label, ...]:
        """Return the labels of a model, the newest first. replaced: only those that are replaced or hidden."""
        table = "all_labels WHERE id NOT IN (SELECT id FROM labels) AND" if replaced else "labels WHERE"
        asked = f"SELECT item FROM {table} model = ? ORDER BY created DESC, id LIMIT 1000"  # noqa: S608 - one of two texts
        return tuple(self._items(Label, asked, model.lower()))

    def model(self, ref: str) -> ModelRow | None:
        """Return what is known about a model (case-insensitive); None if it has neither label nor result."""
        return next(iter(self._model_rows("model = ?", [ref.lower()], 1)), None)

    def models(self, text: str = "", limit: int = 1000) -> list[ModelRow]:
        """Return the models on the Hub whose names have every word of ``text``, the newest first."""
        condition, words = searched(text, "model")
        return self._model_rows(f"{condition} AND model NOT GLOB 'sample:*'", words, limit)

    def results(self, text: str = "", limit: int = 1000, model: str = "") -> list[ResultRow]:
        """Return the results whose models, analysis or answer have every word of ``text``, the newest first. model: only its own."""
        return self._listed(ResultRow, "results", text, limit, model)

    def labels(self, text: str = "", limit: int = 1000) -> list[Label]:
        """Return the labels whose model, precision, contributor or evidence have every word of ``text``, the newest first."""
        return self._listed(Label, "labels", text, limit, "")

    def counts(self) -> Counts:
        """Return the numbers of items."""
        ((labels, labelled, contributors),) = self._cache.read(
            "SELECT COUNT(*), COUNT(DISTINCT model), COUNT(DISTINCT contributor) FROM labels"
        )
        (results,) = self._cache.read("SELECT COUNT(*) FROM results")
        return Counts(labels=labels, labelled=labelled, contributors=contributors, results=results)

    def state(self) -> LibraryState:
        """Return the state of the library and its dataset."""
        publisher = self._publisher
        if publisher is None:
            lost = "What is added is lost with the next restart: no dataset is configured (MANTISSA_DATASET)." if self._ephemeral else ""
            return LibraryState(dataset="", restored=True, problem=lost, backlog=0)
        (backlog,) = self._cache.read("SELECT COUNT(*) FROM backlog")
        restored = publisher.restored.is_set()
        return LibraryState(dataset=publisher.dataset.name, restored=restored, problem=publisher.problem, backlog=backlog)

    def export(self, kind: str, form: str) -> Path:
        """Write the labels, results or models as parquet, csv or jsonl, or the classifier's ``training`` set as csv; return the file.

        Raises InvalidRequest for another kind or format.
        """
        lists: dict[str, Any] = {"labels": self.labels, "results": self.results, "models": self.models}
        return export(self._folder.path / "exports", kind, form, lists)

    def _listed(self, kind: type[_Item], table: str, text: str, limit: int, model: str) -> list[_Item]:
        condition, words = searched(text, "sought")
        values = [model.lower(), *words] if model else words
        condition = f"model = ? AND {condition}" if model else condition
        asked = f"SELECT id FROM {table} WHERE {condition} ORDER BY created DESC, id LIMIT ?"  # noqa: S608 - our own names
        newest = f"SELECT item FROM all_{table} WHERE id IN ({asked}) ORDER BY created DESC, id"  # noqa: S608
        return self._items(kind, newest, *values, limit)

    def _model_rows(self, condition: str, values: list[str], limit: int) -> list[ModelRow]:
        rows = self._cache.read(_MODELS.format(condition=condition), *values, *values, limit)
        labels: dict[str, list[Label]] = {model: [] for model, *_ in rows}
        for label in self._items(Label, f"SELECT item FROM labels WHERE {condition} ORDER BY created DESC", *values):  # noqa: S608
            if label.model.lower() in labels:
                labels[label.model.lower()].append(label)
        return [_model_row(row, labels[row[0]]) for row in rows if row[-1] or labels[row[0]]]

    def _item(self, kind: type[_Item], query: str, *values: Any) -> _Item | None:
        return next(iter(self._items(kind, query, *values)), None)

    def _items(self, kind: type[_Item], query: str, *values: Any) -> list[_Item]:
        return [parse_model(kind, text) for text in self._cache.read(query, *values)]


def _model_row(cells: Any, labels: list[Label]) -> ModelRow:
    model, updated, newest, passport, saving, results = cells
    facts: dict[str, Any] = {"model": labels[0].model} if labels else {"model": model}
    if newest:
        row = parse_model(ResultRow, newest)
        facts = {"model": row.models[0], "answer": row.answer}
    if passport:
        row = parse_model(ResultRow, passport)
        names = ("answer", "storage", "passed_through", "trained_in", "fp16_risk", "reach")
        facts = {name: getattr(row, name) for name in names}
        if row.analysis_version < ANALYSIS_VERSION:  # which may infer something else
            facts["trained_in"] = ""
        facts |= {"model": row.models[0], "result": row.id, "commit": row.commits[0], "outdated": row.analysis_version < ANALYSIS_VERSION}
    if saving:
        saved = parse_model(ResultRow, saving)
        facts |= {"model": saved.models[0], "bytes": saved.bytes, "wasted": saved.wasted}
    found = consensus(labels)
    facts |= {"precision": found.precision or "", "contributors": found.contributors, "disputed": found.disputed, "own": found.own}
    return ModelRow(**facts, evidence=found.evidence, labels=len(labels), results=results, updated=updated)
