"""The result of update sparsity on the page and in documents: its tabs, and that what comes from outside is text."""

from html import unescape

from components.results.html_documents import document
from components.sparsity.result import RESULT
from tests.components.dtype_reports import HOSTILE
from tests.components.sparsity_reports import hostile_sparsity_report, sparsity_report, spectrum, trajectory, unmatched


def test_tabs_are_shown_where_there_is_something_to_show() -> None:
    copy = sparsity_report(num_changed=0, num_unchanged=1_700_000, sparsity=1.0)
    missing = unmatched(missing=[{"name": "a", "shape": (1,), "dtype": "BF16"}])
    several = sparsity_report(**trajectory(3), spectral=[spectrum()], unmatched=missing)
    shown = [[tab.name for tab in RESULT.tabs if tab.shows(report)] for report in (copy, several)]
    assert shown == [["Where", "Tensors"], ["Where", "How much", "Over time", "Tensors", "Matching"]]
    page = unescape(document([several]))
    assert "Zhu et al., The Path Not Taken" in page and "Zhu et al." not in document([copy])
    assert "up_proj.weight" in page and "Angle, left" in page


def test_names_are_text() -> None:
    page = document([sparsity_report(), hostile_sparsity_report()])
    assert "<img" not in page and HOSTILE in unescape(page)
