"""The result of a comparison: the headline and its tiles, the tables, what was left out, and that text from outside stays text."""

import re
import zipfile
from io import BytesIO
from typing import Any

import pytest

from analyzers.update_sparsity.columns import SPECTRAL, TENSORS, TRAJECTORY
from analyzers.update_sparsity.published import published
from components.results.downloads import file_name, tables_zip
from components.results.html_documents import document
from components.results.tables import Sortable, listed
from components.sparsity import tables
from components.sparsity.result import headline
from components.sparsity.tables import matching
from components.sparsity.text import captions
from tests.components.dtype_reports import HOSTILE
from tests.components.html_text import rows_of, text_of
from tests.components.sparsity_reports import (
    hostile_sparsity_report,
    sampled_report,
    sparsity_report,
    spectrum,
    tensor,
    trajectory,
    unmatched,
)


def test_the_number_stands_first_with_what_it_means() -> None:
    said = text_of(headline(sparsity_report()))
    assert "75% of the weights are unchanged in bf16. What now? Ship the update alone" in said
    assert "All measured fact Changed 25% 425,000" in said
    assert "425,000 of 1,700,000 values compared differ" in said
    assert "finds as many changed: 425,000" in said
    assert "Lost to bf16 rounding Nothing Every difference" in said
    assert "Size of a change 5% Half" in said
    assert "interval" not in said


def test_a_sample_says_that_it_estimates_and_how_closely() -> None:
    said = text_of(headline(sampled_report()))
    assert "All estimated estimate Changed" in said and said.count("estimate") == 2 and "fact" not in said
    assert "values read differ" in said
    assert "120,000 stored values differ by more than 0.001" in said and "a different test" in said
    assert "Lost to bf16 rounding 5%" in said
    assert "estimated for all" in tables.sizes(sampled_report())
    assert "need exact mode" in captions.tensors(sampled_report())


def test_quick_mode_that_read_everything_estimates_nothing() -> None:
    report = sparsity_report(mode="quick")
    said = text_of(headline(report))
    assert said.count("fact") == 1 and "estimate" not in said
    assert "As seen in the sample" not in tables.sizes(report)
    assert "need exact mode" not in captions.tensors(report)


def test_changes_without_a_size_are_not_said_to_be_none() -> None:
    report = sparsity_report()
    nothing = report.magnitudes.relative.changed_only.model_copy(update={"p50": None})
    relative = report.magnitudes.relative.model_copy(update={"changed_only": nothing})
    changed = report.model_copy(update={"magnitudes": report.magnitudes.model_copy(update={"relative": relative})})
    assert "Size of a change Cannot tell not decided" in text_of(headline(changed))
    assert "Size of a change No change" in text_of(headline(changed.model_copy(update={"num_changed": 0})))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"swallowed": {"count": 5, "share": 1e-6, "meaningful": False}}, "Cannot tell not decided"),
        (
            {"sparsity": 0.9999982, "update_fraction": 1.8e-6},
            "Ship the update alone: changed values with their indices take about 0.00054%",
        ),
        # two bytes for each changed value, and a bit for every value: 0.34 + 1/16 of two bytes each
        ({"sparsity": 0.66, "update_fraction": 0.34}, "Ship the update alone: changed values with a bitmap take about 40.2%"),
        ({"sparsity": 0.05, "update_fraction": 0.95}, "changed, the changes alone take no less."),
        ({"sparsity": 1.0, "update_fraction": 0.0, "num_changed": 0}, "check that the right checkpoint was uploaded"),
        ({"sparsity": None, "update_fraction": None, "statement": "No values could be compared."}, "No values could be compared."),
        (trajectory(3), "org/base @ 1f2e3d4 → org/tuned@step-3 @ 0000000 after 2 others"),
    ],
)
def test_the_headline_never_says_more_than_is_known(changes: dict[str, Any], said: str) -> None:
    assert said in text_of(headline(sparsity_report(**changes)))


def test_what_is_left_out_is_said_in_the_head_and_listed() -> None:
    named = {"name": "a.weight", "shape": (2, 3), "dtype": "F32"}
    pair = {"name": "b.weight", "tuned_name": "model.b.weight", "shape": (2, 3), "tuned_shape": (3, 2)}
    found = unmatched(
        missing=[named],
        misshapen=[pair | {"transposed": True}],
        resized=[pair | {"rows": 2}],
        renamed=[{"name": "c", "tuned_name": "model.c"}],
        tied=["lm_head.weight"],
        missing_parameters=6,
    )
    report = sparsity_report(unmatched=found)
    assert "Tensors excluded from the comparison: 1 only in the base, 1 of another shape." in text_of(headline(report))
    listed = matching(report)
    assert "6 parameters of the base have none. 1 tensor of another shape or of no plain floats was not compared." in text_of(listed)
    assert rows_of(listed) == [
        ["a.weight", "2 x 3", "F32"],
        ["b.weight", "model.b.weight", "2 x 3", "3 x 2", "transposed"],
        ["b.weight", "model.b.weight", "2 x 3", "3 x 2", "2"],
        ["c", "model.c"],
        ["lm_head.weight"],
    ]
    assert "left out" not in headline(sparsity_report())
    assert "Every tensor has a counterpart of the same name and shape." in matching(sparsity_report())


def test_long_lists_end_and_say_how_long_they_are() -> None:
    found = unmatched(renamed=[{"name": f"t{i}", "tuned_name": f"m.t{i}"} for i in range(1000)])
    html = matching(sparsity_report(unmatched=found))
    assert len(rows_of(html)) == 200
    assert "1,000 tensors, the first 200 listed here" in html


def test_roles_and_sizes_are_all_there() -> None:
    report = sparsity_report()
    shown = [row[:6] for row in rows_of(tables.roles(report))]
    assert shown[::2] == [
        ["embedding, bf16", "95%", "95%", "2%", "95%", "95%"],
        ["attention, bf16", "70%", "70%", "2%", "50%", "80%"],
        ["mlp, bf16", "72%", "72%", "2%", "69%", "75%"],
        ["norm, bf16", "100%", "100%", "2%", "100%", "100%"],
    ]
    assert shown[3] == ["attention, probe", "70%", "68%", "1%", "45%", "85%"]
    sizes = rows_of(tables.sizes(report))
    assert sizes[3] == ["Relative, changed", "425,000", "1%", "2%", "0.5%", "4%", "5%", "6%", "7%", "8%", "9%", "0%", "25%"]
    assert [row[-2:] for row in sizes[1:3]] == [["–", "–"], ["70%", "80%"]]
    assert sizes[4:] == [["Largest 0.1%", "10%", "–"], ["Largest 1%", "40%", "–"], ["Largest 5%", "80%", "–"]]
    assert "estimated for all" in tables.sizes(sampled_report())


def test_this_pair_stands_among_the_published_by_its_sparsity() -> None:
    rows = rows_of(tables.among_published(sparsity_report()))
    assert len(rows) == len(published()) + 1
    shares = [float(row[1].removesuffix("%")) for row in rows]
    assert shares == sorted(shares)
    assert ["tuned", "75%", "base", "this pair", ""] in rows
    assert '<tr class="m-marked"><td>tuned<' in tables.among_published(sparsity_report())
    assert "arxiv.org/abs/2511.08567" in tables.among_published(sparsity_report())


def test_checkpoints_of_a_trajectory_are_numbered_and_pinned() -> None:
    rows = rows_of(listed(TRAJECTORY, sparsity_report(**trajectory(3))))
    assert [row[0] for row in rows] == [f"{i}. org/tuned@step-{i} @ 0000000" for i in (1, 2, 3)]
    assert rows[0][1:3] == ["95%", "95%"]
    assert listed(TRAJECTORY, sparsity_report()) == ""


def test_tensors_and_matrices_sort_by_exact_values_and_read_in_few_digits() -> None:
    unread = {"values_read": 0, "sparsity": None, "num_changed": 0, "changed_rows": None}
    mixed = tensor("a", 0, "mlp", tuned_name="model.a", tuned_dtype="F32", sparsity=0.123456)
    report = sparsity_report(tensors=[mixed, tensor("b", None, "embedding", **unread)], spectral=[spectrum()])
    table = Sortable(TENSORS, "m-tensors").value(report)
    exact, read = (
        [dict(zip(table["headers"], row, strict=True)) for row in rows] for rows in (table["data"], table["metadata"]["display_value"])
    )
    assert (exact[0]["Sparsity"], read[0]["Sparsity"]) == (0.123456, "12.3%")
    assert (read[0]["Dtypes"], read[0]["In the tuned checkpoint"]) == ("BF16 → F32", "model.a")
    assert (read[1]["Sparsity"], read[1]["Changed"], read[1]["Rows changed"], read[1]["In the tuned checkpoint"]) == (
        "not read",
        "–",
        "–",
        "the same",
    )
    assert "2 tensors compared." in captions.tensors(report)
    assert "one row for each layer and role" in captions.tensors(sparsity_report(tensors_aggregated=True))
    matrices = Sortable(SPECTRAL, "m-spectral").value(report)
    named = dict(zip(matrices["headers"], matrices["metadata"]["display_value"][0], strict=True))
    assert (named["Stable rank"], named["Angle, left"], named["In principal mask"], named["In low-magnitude mask"]) == (
        "1.5",
        "4.5°",
        "12.5%",
        "–",
    )


def test_text_from_outside_stays_text() -> None:
    hostile = hostile_sparsity_report()
    page = document([sparsity_report(), hostile])
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    for html in (
        headline(hostile),
        matching(hostile),
        tables.roles(hostile),
        listed(TRAJECTORY, hostile),
        tables.among_published(hostile),
        own,
    ):
        assert "<img" not in html
        assert "&lt;img" in html
    assert HOSTILE in hostile.summary  # plain text: escaped where it meets HTML
    assert not re.search(r"""(src|@import|url)\s*[=(]\s*["']?(https?:)?//""", own)


def test_the_page_taken_along_has_everything_of_every_report() -> None:
    several = sparsity_report(**trajectory(3), spectral=[spectrum()])
    page = document([several, sampled_report()])
    assert page.count('data-figure="') == 7 + 5
    assert re.findall(r'<article id="(report-\d)">', page) == ["report-1", "report-2"]
    assert "Singular values and subspaces" in page
    assert "<title>Fine-tune diff: org/base to org/tuned@step-3, org/base to org/tuned</title>" in page


def test_files_are_named_after_both_sides_and_tables_are_safe() -> None:
    assert file_name(["org/base", "sample:tiny-tuned"], "sparsity") == "org-base-to-sample-tiny-tuned-sparsity"
    assert len(file_name(["a" * 500, "b" * 500], "sparsity")) <= 80 + len("-sparsity")
    archive = zipfile.ZipFile(BytesIO(tables_zip([hostile_sparsity_report()])))
    assert {"summary.csv", "roles.csv", "layers.csv", "tensors.csv", "unmatched.csv", "trajectory.csv"} <= set(archive.namelist())
    assert "'=<img" in archive.read("tensors.csv").decode()
