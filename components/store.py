"""Finds and stores results, and gives each an address: of the library, of an example, or for an hour in memory.

The app has one library, opened when it starts. Without one nothing is found and nothing is stored.
"""

import gzip
import logging
import re
import secrets
import threading
import time
import zlib
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from analyzers import ANALYZERS, analyzer_of
from analyzers.checkpoints import Access, LocalRepository, Summand, joined, parse_reference, summands
from analyzers.checkpoints.hub.hub_repository import open_hub
from analyzers.core.errors import HubError, LibraryUnavailable, MantissaError
from analyzers.core.report import Report, content_id
from analyzers.core.request import Request
from analyzers.core.untrusted_json import parse_model
from analyzers.language_models.samples import sample_folder
from components.library import Library
from components.result import labels, links

_ANALYSES = Path(__file__).parent / "analyses"
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Built-in data; any other name in a request is a dataset on the Hub.
_OUR_TEXT = ("builtin", "random")
_OPEN_SECONDS, _OPEN_BYTES = 3600, 100_000_000
NOT_RESTORED = "The library is still being read from its dataset: whether this is stored here is not known yet. Try again in a moment."
_log = logging.getLogger("mantissa")
_library: "list[Library]" = []
_open: dict[str, tuple[float, str, bytes]] = {}
_lock = threading.Lock()


class Found(NamedTuple):
    """A stored report, its address relative to the first page, and when it was stored (ISO)."""

    report: Report
    address: str
    made: str


class Pinned(NamedTuple):
    """A request with commits for all its names, and the key under which its report is stored; empty if it is not stored."""

    request: Any
    key: str


def set_library(library: Library | None) -> None:
    """Set the library in which results are found and stored from now on; None disables both."""
    _library[:] = [] if library is None else [library]
    labels.set_source(None if library is None else library.consensus)


def library() -> Library | None:
    """Return the library of this app, or None."""
    return _library[0] if _library else None


def our_library() -> Library:
    """Return the library of this app. Raises LibraryUnavailable if it could not be opened."""
    if not _library:
        raise LibraryUnavailable("The library is not open, so nothing is stored: analyses work, and the log of the app says why.")
    return _library[0]


def alike(model: str) -> list[str]:
    """Return models of the library whose tensors have the same shapes."""
    return _library[0].alike(parse_reference(model, local=False).full_name, 6) if _library else []


def resolve(request: Request) -> Pinned:
    """Replace the public names in ``request`` by canonical ids with commits, so that the analysis need not resolve them again.

    Raises HubError for a request on a single repository: asking again in the analysis would take as long again.
    """
    try:
        known = _known(request)
    except MantissaError as error:
        if isinstance(error, HubError) and len(_names(request)) == 1:
            raise
        return Pinned(request, "")  # the analysis reports the error, and which checkpoint it concerns
    key = _key(request, [known[name] for name in _names(request) if name in known])
    hub = {name: commit for name, commit in known.items() if not name.startswith("sample:")}
    fields: dict[str, Any] = {
        name: value for name in ("model", "base", "data") if (value := hub.get(getattr(request, name, None) or "")) is not None
    }
    for several in ("models", "tuned", "candidates"):
        if hasattr(request, several):
            fields[several] = tuple(hub.get(name, name) for name in getattr(request, several))
    return Pinned(request.model_copy(update=fields), key)


def names_commits(request: Request) -> bool:
    """Return whether a request names only samples and commits, so that `resolve` asks nobody."""
    references = [part for name in _names(request) for part in parse_reference(name, local=False).all]
    return all(each.kind == "sample" or _COMMIT.fullmatch(each.revision or "") for each in references)


def find(pinned: Pinned) -> Found | None:
    """Return the stored report of the same request on the same commits; None if there is none."""
    if not pinned.key:
        return None
    example_report = example(analyzer_of(pinned.request).name)
    if example_report is not None and key_of(example_report) == pinned.key:
        return Found(example_report, links.stored(example_report.id), "")
    for row in _library[0].find(pinned.key) if _library else ():
        report = stored(row.id)
        if report is not None and key_of(report) == pinned.key:
            return Found(report, links.stored(report.id), row.created)
    return None


def add(report: Report, access: Access) -> str:
    """Store a computed report if everything in it is public, and return its address. Never raises: the visitor gets it anyway."""
    try:
        public = all(facts.public for facts in checkpoints(report)) and (access.token is None or _has_public_data(report))
        if public and key_of(report) and _library:
            for each in (report, *report.parts()):
                _library[0].add_result(each, key_of(each), public=public)
            if _library[0].result_row(report.id) is not None:
                return links.stored(report.id)
    except MantissaError as error:
        _log.warning("a result could not be stored: %s", error)
    except Exception as error:
        _log.error("a result could not be stored: %s", type(error).__name__)
    return _kept_open(report)


def stored(identifier: str) -> Report | None:
    """Return a stored report by its id, or the example with this id; None if there is none, or another version stored it."""
    for name in ANALYZERS:
        report = example(name)
        if report is not None and report.id == identifier:
            return report
    row = _library[0].result_row(identifier) if _library else None
    content = _library[0].result(identifier) if row is not None else None
    try:
        return read(row.analyzer, content) if row is not None and content is not None else None
    except ValueError:
        return None


def opened(token: str) -> Report | None:
    """Return the report that is kept in memory under a token; None after an hour, or if newer ones needed the memory."""
    until, analyzer, content = _open.get(token, (0.0, "", b""))
    return read(analyzer, zlib.decompress(content)) if time.monotonic() < until else None


@cache
def example(analyzer: str) -> Report | None:
    """Return the finished example of an analyzer's page; None if it has none."""
    path = _ANALYSES / analyzer / "example.json.gz"
    return read(analyzer, gzip.decompress(path.read_bytes())) if path.exists() else None


def read(analyzer: str, content: bytes) -> Report:
    """Parse the JSON of a report of that analyzer. Raises ValueError (also pydantic's)."""
    if analyzer not in ANALYZERS:
        raise ValueError(analyzer)
    report: Report = parse_model(ANALYZERS[analyzer].report_model(), content)
    return report


def key_of(report: Any) -> str:
    """Return the key by which `find` looks this report up, SHA-256 (hex); empty if it is never looked up."""
    named = [_at_commits(facts.ref, facts.commit) for facts in checkpoints(report) if getattr(facts, "source", "named") == "named"]
    text: Any = getattr(report, "data", None) or getattr(report, "inputs", None)
    if (commit := getattr(text, "commit", None)) is not None:
        named.append(f"{text.source.removeprefix('datasets/')}@{commit}")
    return _key(report.request, named)


def checkpoints(report: Any) -> list[Any]:
    """Return the facts about every checkpoint of a report, its subject first, a base last."""
    return _subject_first(report, "checkpoint")


def _kept_open(report: Report) -> str:
    token, content = secrets.token_urlsafe(32), zlib.compress(report.model_dump_json().encode(), 1)
    now = time.monotonic()
    with _lock:
        _open[token] = (now + _OPEN_SECONDS, report.analyzer, content)
        for old in [each for each, (until, _, _) in _open.items() if until < now]:
            del _open[old]
        while sum(len(each) for _, _, each in _open.values()) > _OPEN_BYTES and len(_open) > 1:
            del _open[next(iter(_open))]
    return f"open/{token}"


def _has_public_data(report: Any) -> bool:
    """Return whether everybody can read the dataset of a report, since reports do not say. Raises MantissaError."""
    if (name := getattr(report.request, "data", _OUR_TEXT[0])) in _OUR_TEXT:
        return True
    reference = parse_reference(name, local=False, kind="dataset")
    with closing(open_hub(reference.name, reference.revision, Access(), "datasets")) as dataset:
        return dataset.public


def _key(request: Any, named: list[str]) -> str:
    """Return the SHA-256 (hex) of analyzer, analysis version, and the request with its names replaced by ``named``, which have commits.

    The device is excluded: it depends on the machine, and the report states it. Empty for a request that names something that is not
    public or contains a visitor's own text.
    """
    own = getattr(request, "logprobs", None) or getattr(request, "text", None) is not None
    if own or len(named) != len(_names(request)):
        return ""
    analyzer = analyzer_of(request)
    asked = request.model_dump(
        mode="json", exclude_defaults=True, exclude={"device", "model", "models", "base", "tuned", "candidates", "suggested", "data"}
    )
    if hasattr(request, "candidates"):  # a report lists the best candidate first, whatever the order of the request
        named = [named[0], *sorted(named[1:])]
    return content_id(analyzer.name, analyzer.analysis_version(), asked | {"named": list(named)})


def _names(request: Any) -> list[str]:
    """Return the names of checkpoints (in the order of `checkpoints`) and then of a dataset in ``request``."""
    data = getattr(request, "data", _OUR_TEXT[0])
    return _subject_first(request, "model") + ([] if data in _OUR_TEXT else [data])


def _subject_first(source: Any, subject: str) -> list[Any]:
    several = (*getattr(source, "models", ()), *getattr(source, "candidates", ()), *getattr(source, "tuned", ()))
    found = (getattr(source, subject, None), *several, getattr(source, "base", None))
    return [each for each in found if each is not None]


def _known(request: Any) -> dict[str, str]:
    """Map the public names in ``request`` to canonical ids with commits."""
    known: dict[str, str] = {}
    for name in dict.fromkeys(_names(request)):
        of_data = name == getattr(request, "data", None)
        parts = [Summand(name)] if of_data else summands(name, local=False)
        found = [_at_commit(part.text, of_data) for part in parts]
        if all(found):
            known[name] = joined((text or "", part.weight) for text, part in zip(found, parts, strict=True))
    return known


def _at_commit(name: str, of_data: bool) -> str | None:
    """Return the canonical id of one repository with its commit; None if it is not public."""
    reference = parse_reference(name, local=False, kind="dataset" if of_data else "model")
    if reference.kind == "sample":
        return f"sample:{reference.name}@{LocalRepository(sample_folder(reference.name), name).commit}"
    if reference.revision and _COMMIT.fullmatch(reference.revision):
        return name
    with closing(open_hub(reference.name, reference.revision, Access(), "datasets" if of_data else "models")) as repository:
        return f"{repository.ref.removeprefix('datasets/')}@{repository.commit}" if repository.public else None


def _at_commits(ref: str, commit: str) -> str:
    """Return the canonical reference of a checkpoint, or of a base and its adapters, each with its commit, also of samples."""
    parts, commits = summands(ref, local=False), commit.split("+")
    return joined((f"{part.text}@{each}", part.weight) for part, each in zip(parts, commits, strict=True))
