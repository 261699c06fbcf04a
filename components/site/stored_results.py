"""Finds and stores results: the same request on the same commits is not computed again.

The app has one library, opened when it starts. Without one (a test, a script) nothing is found and nothing is stored.
"""

import logging
import re
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from analyzers import ANALYZERS, analyzer_of
from analyzers.checkpoints import Access, LocalRepository, Summand, joined, parse_reference, summands
from analyzers.checkpoints.hub.hub_repository import open_hub
from analyzers.core.errors import HubError, LibraryUnavailable, MantissaError
from analyzers.core.report import Report, content_id
from analyzers.core.request import Request
from analyzers.core.untrusted_json import parse_model
from analyzers.language_models.samples import sample_folder

if TYPE_CHECKING:
    from components.library import Consensus, Library, Result

_ANYBODY = Access()
# Unit of the progress item before a stored report; its note says when the report was stored.
STORED = "stored"
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Built-in data; any other name in a request is a dataset on the Hub.
_OUR_TEXT = ("builtin", "random")
NOT_RESTORED = "The library is still being read from its dataset: whether this is stored here is not known yet. Try again in a moment."
_log = logging.getLogger("mantissa")
_open: "list[Library]" = []


def set_library(library: "Library | None") -> None:
    """Set the library in which results are found and stored from now on; None disables both."""
    _open[:] = [] if library is None else [library]


def library() -> "Library | None":
    """Return the library of this app, or None."""
    return _open[0] if _open else None


def our_library() -> "Library":
    """Return the library of this app. Raises LibraryUnavailable if it could not be opened."""
    if not _open:
        raise LibraryUnavailable("The library is not open, so nothing is stored: analyses work, and the log of the app says why.")
    return _open[0]


def is_restored() -> bool:
    """Return whether a result that is not found is certainly not stored: the library's dataset, if it has one, has been read."""
    ours = library()
    return ours is None or ours.wait_restored(0)


def consensus(model: str) -> "Consensus | None":
    """Return the consensus of the labels of a model; None without a library, or for a sample, which has no labels."""
    ours = library()
    if ours is None or model.startswith("sample:"):
        return None
    try:
        return ours.consensus(model)
    except MantissaError as error:
        _log.warning("labels cannot be read: %s", error)
        return None


class Pinned(NamedTuple):
    """A request with commits for all its names, and the key under which its report is stored; empty if it is not stored."""

    request: Any
    key: str


def resolve(request: Request, ask: bool = True) -> Pinned:
    """Replace the public names in ``request`` by canonical ids with commits, so that the analysis need not resolve them again.

    ask: resolve revisions that are not commits on the Hub, with one request each; else names without a commit stay unchanged, as they do
    without a library. Raises HubError for a request on a single repository: asking again in the analysis would take as long again.
    """
    if library() is None:
        return Pinned(request, "")
    try:
        known = _known(request, ask)
    except MantissaError as error:
        if isinstance(error, HubError) and len(_names(request)) == 1:
            raise
        return Pinned(request, "")  # the analysis reports the error, and which checkpoint it concerns
    key = _key(request, [known[name] for name in _names(request) if name in known])
    hub = {name: commit for name, commit in known.items() if not name.startswith("sample:")}
    fields: dict[str, Any] = {
        name: value for name in ("model", "base", "data") if (value := hub.get(getattr(request, name, ""))) is not None
    }
    for several in ("models", "tuned", "candidates"):
        if hasattr(request, several):
            fields[several] = tuple(hub.get(name, name) for name in getattr(request, several))
    return Pinned(request.model_copy(update=fields), key)


def find(request: Request, ask: bool = True) -> tuple[Report, str] | None:
    """Find the stored report of ``request``: `find_pinned` after `resolve`."""
    return find_pinned(resolve(request, ask))


def find_pinned(pinned: Pinned) -> tuple[Report, str] | None:
    """Return the stored report of the same request on the same commits, and when it was stored (UTC, ISO); None if there is none."""
    ours = library()
    if ours is None or not pinned.key:
        return None
    for row in ours.find(pinned.key):
        if not ours.is_available(row.result.models):
            continue
        report = load(ours, row.result)
        if report is not None and key_of(report) == pinned.key:
            return report, row.result.created
    return None


def names_commits(request: Request) -> bool:
    """Return whether ``request`` names only samples and commits, so that `find` need not ask the Hub."""
    references = [part for name in _names(request) for part in parse_reference(name, local=False).all]
    return all(each.kind == "sample" or _COMMIT.fullmatch(each.revision or "") for each in references)


def is_sample(request: Request) -> bool:
    """Return whether all checkpoints of ``request`` are built-in samples."""
    return all(part.kind == "sample" for name in _names(request) for part in parse_reference(name, local=False).all)


def store(report: Report, access: Access = _ANYBODY) -> None:
    """Store ``report`` and its parts, read with ``access``, if everything in it is public. Never raises: the visitor gets it anyway."""
    ours = library()
    if ours is None:
        return
    try:
        public = all(facts.public for facts in checkpoints(report)) and (access.token is None or _has_public_data(report))
        for each in (report, *report.parts()):
            ours.add_result(each, key_of(each), public=public)
    except MantissaError as error:
        _log.warning("a result could not be stored: %s", error)
    except Exception as error:
        _log.error("a result could not be stored: %s", type(error).__name__)


def _has_public_data(report: Any) -> bool:
    """Return whether everybody can read the dataset in the request of ``report``, if any, since reports do not say.

    Raises MantissaError.
    """
    if (name := getattr(report.request, "data", _OUR_TEXT[0])) in _OUR_TEXT:
        return True
    reference = parse_reference(name, local=False, kind="dataset")
    with closing(open_hub(reference.name, reference.revision, Access(), "datasets")) as dataset:
        return dataset.public


def contribute(reports: Sequence[Report], dataset: str) -> str:
    """Open a pull request on the dataset with these reports, with this machine's token; return its address.

    Raises InvalidRequest for reports that are not public, AccessDenied, CheckpointNotFound, HubError.
    """
    from components.library.contribute import contribute as pull_request

    return pull_request(reports, dataset=dataset, keys=[key_of(report) for report in reports])


def key_of(report: Any) -> str:
    """Return the key by which `find` looks this report up, SHA-256 (hex); empty if it is never looked up."""
    named = [_at_commits(facts.ref, facts.commit) for facts in checkpoints(report) if getattr(facts, "source", "named") == "named"]
    text: Any = getattr(report, "data", None) or getattr(report, "inputs", None)
    if (commit := getattr(text, "commit", None)) is not None:
        named.append(f"{text.source.removeprefix('datasets/')}@{commit}")
    return _key(report.request, named)


def is_stored(report: Report) -> bool:
    """Return whether the report is stored, so that ``/result/ID`` shows it."""
    ours = library()
    return ours is not None and ours.result_row(report.id) is not None


def newest(analyzer: str, model: str) -> Report | None:
    """Return the newest stored report of an analyzer on a model; None if there is none, or only an outdated one."""
    from components.library.list_query import Query

    ours = library()
    rows = ours.results(Query.of(analyzer=analyzer, model=model, per_page=1)).rows if ours is not None else ()
    report = load(ours, rows[0].result) if ours is not None and rows else None
    return None if report is None or report.outdated else report


def load(ours: "Library", result: "Result") -> Report | None:
    """Return a stored report; None if it is gone, or if another version of this program stored it."""
    stored = ours.result(result.id)
    try:
        return read(result.analyzer, stored) if stored is not None else None
    except ValueError:
        return None


def read(analyzer: str, stored: bytes) -> Report:
    """Parse ``stored``, the JSON of a report of that analyzer. Raises ValueError (also pydantic's)."""
    if analyzer not in ANALYZERS:
        raise ValueError(analyzer)
    report: Report = parse_model(ANALYZERS[analyzer].report_model(), stored)
    return report


def checkpoints(report: Any) -> list[Any]:
    """Return the facts about every checkpoint of a report, its subject first, a base last."""
    return _subject_first(report, "checkpoint")


def _key(request: Any, named: Sequence[str]) -> str:
    """Return the SHA-256 (hex) of analyzer, analysis version, and the request with its names replaced by ``named``, which have commits.

    named: in the order of `_names`. The device is excluded: it depends on the machine, and the report states it. Empty for a request that
    is not stored, because it names something that is not public or contains a visitor's own text.
    """
    own = getattr(request, "pairs", None) or getattr(request, "logprobs", None) or getattr(request, "text", None) is not None
    if own or len(named) != len(_names(request)):
        return ""
    analyzer = analyzer_of(request)
    asked = request.model_dump(
        mode="json", exclude_defaults=True, exclude={"device", "model", "models", "base", "tuned", "candidates", "data"}
    )
    if hasattr(request, "candidates"):  # a report lists the best candidate first, whatever the order of the request
        named = [named[0], *sorted(named[1:])]
    return content_id(analyzer.name, analyzer.analysis_version(), asked | {"named": list(named)})


def _names(request: Any) -> list[str]:
    """Return the names of checkpoints (in the order of `checkpoints`) and then of a dataset in ``request``."""
    data = getattr(request, "data", _OUR_TEXT[0])
    return _subject_first(request, "model") + ([] if data in _OUR_TEXT else [data])


def _subject_first(source: Any, subject: str) -> list[Any]:
    """Return the subject, the models, the candidates, the tuned checkpoints and the base, as far as a request or a report has them."""
    several = (*getattr(source, "models", ()), *getattr(source, "candidates", ()), *getattr(source, "tuned", ()))
    found = (getattr(source, subject, None), *several, getattr(source, "base", None))
    return [each for each in found if each is not None]


def _known(request: Any, ask: bool) -> dict[str, str]:
    """Map the public names in ``request`` to canonical ids with commits. ask: resolve names without a commit on the Hub."""
    known: dict[str, str] = {}
    for name in dict.fromkeys(_names(request)):
        of_data = name == getattr(request, "data", None)
        parts = [Summand(name)] if of_data else summands(name, local=False)
        found = [_at_commit(part.text, of_data, ask) for part in parts]
        if all(found):
            known[name] = joined((text or "", part.weight) for text, part in zip(found, parts, strict=True))
    return known


def _at_commit(name: str, of_data: bool, ask: bool) -> str | None:
    """Return the canonical id of one repository with its commit; None if it is not known, or not public."""
    reference = parse_reference(name, local=False, kind="dataset" if of_data else "model")
    if reference.kind == "sample":
        return f"sample:{reference.name}@{LocalRepository(sample_folder(reference.name), name).commit}"
    if reference.revision and _COMMIT.fullmatch(reference.revision):
        return name
    if not ask:
        return None
    repository = open_hub(reference.name, reference.revision, Access(), "datasets" if of_data else "models")
    repository.close()
    return f"{repository.ref.removeprefix('datasets/')}@{repository.commit}" if repository.public else None


def _at_commits(ref: str, commit: str) -> str:
    """Return the canonical reference of a checkpoint, or of a base and its adapters, each with its commit, also of samples."""
    parts, commits = summands(ref, local=False), commit.split("+")
    return joined((f"{part.text}@{each}", part.weight) for part, each in zip(parts, commits, strict=True))
