"""The status of a finished run, which a screen reader reads out."""

from html import unescape

from components.text.render import macros
from tests.components.exit_reports import exit_report


def test_a_long_summary_is_read_out_to_its_end() -> None:
    said = f"{exit_report().summary} " * 8
    assert 1_000 < len(said) < 2_000
    assert f"Done. {said.strip()}" in unescape(str(macros("running/templates/status.html").done("x", said, "", "", ())))
