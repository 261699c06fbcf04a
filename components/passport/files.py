"""The files of a run over several models."""

import json
from collections.abc import Sequence
from pathlib import Path

from components.passport.document import document
from components.passport.outcomes import Outcome
from components.results.downloads import Files, file_name, tables_zip, write_files


def write_several(folder: Path, outcomes: Sequence[Outcome]) -> Files:
    """Write the files into ``folder``. The JSON is a list, with ``{"model", "error"}`` for failures. Raises OSError if writing fails."""
    wholes = [None if outcome.report is None else outcome.whole() for outcome in outcomes]
    pairs = list(zip(outcomes, wholes, strict=True))
    each = [
        whole.model_dump_json(indent=2) if whole else json.dumps({"model": outcome.model, "error": outcome.error})
        for outcome, whole in pairs
    ]
    failed = [(outcome.model, outcome.error) for outcome, whole in pairs if not whole]
    reports = [whole for whole in wholes if whole]
    page = document([Outcome(outcome.model, whole, outcome.error) for outcome, whole in pairs]).alone()
    others = f"-and-{len(outcomes) - 1}-more" if len(outcomes) > 1 else ""
    name = file_name([f"{outcomes[0].model}{others}"], "dtype")
    return write_files(folder, name, "[" + ",\n".join(each) + "]", tables_zip(reports, failed), page)
