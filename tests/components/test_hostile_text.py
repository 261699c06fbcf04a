"""Text from outside stays text in every figure and document, whichever analyzer made the report."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from analyzers.core.report import Report
from components.dtype.labelled_models_plot import among_models
from components.results.html_documents import document
from tests.components.conflict_reports import hostile_conflict_report
from tests.components.dtype_reports import hostile_report
from tests.components.exit_reports import hostile_exit_report
from tests.components.precision_reports import hostile_precision_report
from tests.components.sparsity_reports import hostile_sparsity_report

REPORTS = [hostile_report, hostile_sparsity_report, hostile_conflict_report, hostile_exit_report, hostile_precision_report]


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


@pytest.mark.parametrize("made", REPORTS)
def test_figures(made: Callable[[], Report]) -> None:
    for figure in made().plots().values():
        drawn = json.dumps(figure.to_plotly_json(), default=plain)
        assert "<img" not in drawn and "\\u202e" not in drawn
    assert "<img" not in json.dumps(among_models([hostile_report()]).to_plotly_json(), default=plain)


@pytest.mark.parametrize("made", REPORTS)
def test_documents(made: Callable[[], Report]) -> None:
    own = re.sub(r"<script>.*?</script>", "", document([made()]), flags=re.DOTALL)
    assert "<img" not in own and "\u202e" not in own and "&lt;img" in own
    assert not re.search(r"""(src|@import|url)\s*[=(]\s*["']?(https?:)?//""", own)
