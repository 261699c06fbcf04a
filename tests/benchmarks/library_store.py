"""Writes a library of many contributions: ``python -m tests.benchmarks.library_store FOLDER ROWS`` adds ROWS labels and ROWS results.

It runs in a separate process, so that its memory is not counted as that of programs started later. The rows are added as those of a
dataset: a label and a result for each model, ten models per organisation, every tenth one disputed.
"""

import sys
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

from components.library import PRECISIONS, Identity, Label, Library, Result, label_rows, result_rows
from components.library.item_checks import timestamp
from components.library.storable_reports import storable_result
from components.site.stored_results import key_of
from tests.components.dtype_reports import of_model, report

from .child import run

_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
_AT_ONCE = 2_000


def fill(folder: Path, rows: int) -> Path:
    """Write a library of ``rows`` labels and as many results into ``folder``, and return it."""
    run(["-m", "tests.benchmarks.library_store", str(folder), str(rows)], timeout=1_800)
    return folder


def model_of(number: int) -> str:
    """Return the model of a row."""
    return f"org-{number // 10}/model-{number}"


def label_of(number: int) -> Label:
    """Return the label of a row; every tenth row has a different label for the previous model."""
    who = Identity.login(f"user-{number % 997}")
    model = model_of(number - (number % 10 == 9))
    quote = f"Table {number % 7} of the paper: trained in {PRECISIONS[number % 6]}, on {number} accelerators."
    link = f"https://example.org/papers/{number}"
    return Label.of(who, model, PRECISIONS[number % 6], link, quote, created=_stamp(number))


def result_of(number: int) -> tuple[Result, str]:
    """Return the result of a row with its JSON, which is that of a small checkpoint."""
    found = of_model(model_of(number), report(id=f"{number + 1:064x}"))
    text = found.model_dump_json()
    result = storable_result(text, key=key_of(found), created=_stamp(number), contributor="")
    assert result is not None
    return result, text


def _stamp(number: int) -> str:
    return timestamp(_BEGAN + timedelta(seconds=number))


def write(folder: Path, rows: int) -> None:
    """Write the library."""
    with Library.open(folder) as library:
        said, found = map(label_of, range(rows)), map(result_of, range(rows))
        for _ in range(0, rows, _AT_ONCE):
            with library._database.write() as connection:
                label_rows.take_labels(connection, islice(said, _AT_ONCE), "")
                result_rows.take_results(connection, islice(found, _AT_ONCE), "")


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
