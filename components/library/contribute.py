"""Opens pull requests on the dataset from the command line, with the contributor's own token."""

from collections.abc import Sequence

from analyzers.checkpoints.reference import quoted
from analyzers.core.errors import AccessDenied, InvalidRequest
from analyzers.core.report import Report
from components.library.dataset import Dataset
from components.library.dataset_rows import path_of, result_row, to_parquet
from components.library.item_checks import hub_id, now
from components.library.schema import Result
from components.library.storable_reports import data_is_built_in, storable


def contribute(reports: Sequence[Report], *, dataset: str, token: str | None = None, keys: Sequence[str] = ()) -> str:
    """Open a pull request on ``dataset`` with the reports; return its address.

    token: None for the token of this machine's login. keys: key of each report, for `Library.find`, or none. Raises InvalidRequest for
    reports on checkpoints that are not public or on data that is not built in (a token may read what others may not), and AccessDenied,
    CheckpointNotFound, HubError.
    """
    hub_id(dataset)
    rows = {result.id: result_row(result, text) for result, text in map(_public, reports, keys or [""] * len(reports))}
    if not rows:
        raise InvalidRequest("There is nothing to contribute: no report was computed.")
    token = token or logged_in()
    if not token:
        raise AccessDenied("Contributing needs a login to the Hub: run hf auth login, or set HF_TOKEN.")
    files = {path_of("results", list(rows)): to_parquet("results", [rows[name] for name in sorted(rows)])}
    models = sorted({row["models"][0] for row in rows.values()})
    about = models[0] if len(models) == 1 else f"{models[0]} and {len(models) - 1} more"
    return Dataset(dataset, token).pull_request(f"Add results of {about}", files)


def _public(report: Report, key: str) -> tuple[Result, str]:
    stored = storable(report, key=key, created=now(), contributor="")
    if stored is None or stored[0].sample or not data_is_built_in(stored[1]):
        name = quoted(next(iter(report.subject().values())))
        raise InvalidRequest(f"The result of {name} cannot be contributed: only those of public models, on built-in text, are.")
    return stored


def logged_in() -> str | None:
    """Return the token of this machine's login, or None. Raises AccessDenied if the login cannot be used."""
    from huggingface_hub import get_token

    try:
        return get_token()
    except Exception:  # the library may exchange or refresh tokens over the network, and does not document the errors
        raise AccessDenied("This machine's login to the Hub cannot be used; log in again.") from None
