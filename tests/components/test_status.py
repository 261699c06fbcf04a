"""The status of a finished run, which a screen reader reads out."""

from html import unescape

from components.exit.result import summary
from components.text.render import macros
from tests.components.exit_reports import exit_report


def test_a_long_summary_is_read_out_to_its_end() -> None:
    said = summary(exit_report())
    assert len(said) > 1_000
    assert f"Done. {said}</p>" in unescape(str(macros("running/templates/status.html").done("x", said, "", "")))
