"""The outcomes of a scan: what was appended is there, whatever happened afterwards."""

import os
from pathlib import Path

import pytest

from analyzers.core.errors import HubThrottled, InvalidCheckpoint, InvalidRequest
from analyzers.scan.outcomes import Outcome, Outcomes, appending

OUTCOMES = [
    Outcome("org/a", report='{"x":1.5,"name":"\\u2028 {} \\n, \\"report\\": , \\"complete\\": true}"}'),
    Outcome.failed('/path, "report": with spaces/b', InvalidCheckpoint("It is damaged.")),
    Outcome.failed("org/c", HubThrottled("The Hub is busy.")),
    Outcome("org/d", report='{"a":{"b":{}}}'),
    Outcome.failed("org/e", ZeroDivisionError("secret")),
]


def written(folder: Path, *outcomes: Outcome) -> Path:
    """A file of outcomes, after the options of a scan."""
    with appending(folder) as append:
        append('{"options": {"seed": 0}}')
        for outcome in outcomes:
            append(outcome.line())
    return folder / "outcomes.jsonl"


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    written(tmp_path, *OUTCOMES)
    found = Outcomes(tmp_path)
    assert [found.read(each.key)[0].message for each in OUTCOMES] == [each.message for each in OUTCOMES]
    assert found.read("org/a")[0].report == '{"x":1.5,"name":"\u2028 {} \\n, \\"report\\": , \\"complete\\": true}"}'
    assert found.read("org/d")[1] == {"a": {"b": {}}} and found.read("org/c")[1] is None
    assert [found.entries[each.key].transient for each in OUTCOMES] == [False, False, True, False, True]
    assert found.options == {"seed": 0} and "secret" not in repr(OUTCOMES[4])
    written(tmp_path, Outcome("org/d", report="{}"))
    assert Outcomes(tmp_path).read("org/d")[1] == {}, "the last one counts"


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.key)
def test_a_line_that_was_cut_is_missing(outcome: Outcome, tmp_path: Path) -> None:
    """A process may be killed after any byte; what is appended later is read."""
    path = written(tmp_path, outcome)
    whole = path.read_bytes()
    for end in range(len(whole) - 2, whole.index(b"\n"), -7):
        path.write_bytes(whole[:end])
        assert not Outcomes(tmp_path).entries
        written(tmp_path, Outcome("org/next", report="{}"))
        assert set(Outcomes(tmp_path).entries) == {"org/next"}


def test_a_file_that_is_in_use_or_no_file_is_refused(tmp_path: Path) -> None:
    with appending(tmp_path), pytest.raises(InvalidRequest, match="Another scan"), appending(tmp_path):
        pass
    os.mkfifo(tmp_path / "outcomes-1.jsonl")
    with pytest.raises(InvalidRequest, match="is not a regular file"), appending(tmp_path, "outcomes-1.jsonl"):
        pass
