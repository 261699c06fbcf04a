"""Opens pull requests on the dataset from the command line, with the contributor's own token."""

import gzip
import hashlib
from collections.abc import Sequence

from analyzers.checkpoints.reference import quoted
from analyzers.core.errors import AccessDenied, InvalidRequest
from analyzers.core.report import Report
from analyzers.core.untrusted_json import parse_json
from components.library.evidence import hub_id
from components.library.folder import report_path
from components.library.hub import Dataset, logged_in
from components.library.items import now
from components.library.result_facts import on_built_in_data, storable


def contribute(reports: Sequence[Report], dataset: str, keys: Sequence[str] = ()) -> str:
    """Open a pull request on ``dataset`` with the reports, with this machine's token; return its address.

    keys: of each report, for `Library.find`, or none. Raises InvalidRequest for reports on checkpoints that are not public or on data that
    is not built in (a token may read what others may not), and AccessDenied, CheckpointNotFound, HubError.
    """
    hub_id(dataset)
    files, rows = dict[str, bytes](), []
    for report, key in zip(reports, keys or [""] * len(reports), strict=True):
        stored = storable(report, key, now())
        if stored is None or "sample:" in stored[0].models[0] or not on_built_in_data(parse_json(stored[1])):
            name = quoted(next(iter(report.subject().values())))
            raise InvalidRequest(f"The result of {name} cannot be contributed: only those of public models, on built-in text, are.")
        files[report_path(report.id)] = gzip.compress(stored[1].encode(), 6, mtime=0)
        rows.append(stored[0])
    if not rows:
        raise InvalidRequest("There is nothing to contribute: no report was computed.")
    if not (token := logged_in()):
        raise AccessDenied("Contributing needs a login to the Hub: run hf auth login, or set HF_TOKEN.")
    lines = "".join(f"{row.model_dump_json(exclude_defaults=True)}\n" for row in rows).encode()
    files[f"results/contributed-{hashlib.sha256(lines).hexdigest()[:16]}.jsonl"] = lines
    models = sorted({row.models[0] for row in rows})
    about = models[0] if len(models) == 1 else f"{models[0]} and {len(models) - 1} more"
    return Dataset(dataset, token).pull_request(f"Add results of {about}", files)
