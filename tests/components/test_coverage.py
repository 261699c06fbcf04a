"""Below full coverage every sentence about the whole says how far it reaches; and the accounts and conversions are shown, as text."""

import re
from html import unescape
from typing import Any

import pytest

from analyzers import check, dtype_detection, parents, update_sparsity
from analyzers.check import CheckReport
from analyzers.core.coverage import COVERAGE, NotRead
from analyzers.core.report import Report
from analyzers.core.terminal import joined
from analyzers.dtype_detection import DtypeReport
from analyzers.parents import ParentsReport
from analyzers.scan import tables
from analyzers.update_sparsity import SparsityReport
from components.dtype.several_models import Outcome, comparison
from components.library import Library, Query
from components.library.storable_reports import storable_result
from components.library_page.list_tables import MODELS, RESULTS, listed
from components.results.coverage_tab import accounts
from components.results.html_documents import document
from components.site import addresses, link_previews, share_card
from components.site.badges import CHECKED, parts
from tests.components.coverage_reports import coverage, covering, hostile_coverage, stacked
from tests.components.dtype_reports import HOSTILE, of_model
from tests.components.html_text import text_of

STAMP = "2026-11-24T12:00:00.000000Z"
SAME = "sample:tiny-bf16-as-fp32"


def _last(items: Any) -> Any:
    *_, report = items
    return report


@pytest.fixture(scope="module")
def passport() -> DtypeReport:
    report: DtypeReport = _last(dtype_detection.analyze(dtype_detection.DtypeRequest(model=SAME)))
    return report


@pytest.fixture(scope="module")
def difference() -> SparsityReport:
    request = update_sparsity.SparsityRequest(base="sample:tiny-bf16", tuned=("sample:tiny-tuned",))
    report: SparsityReport = _last(update_sparsity.analyze(request))
    return report


@pytest.fixture(scope="module")
def copied() -> ParentsReport:
    request = parents.ParentsRequest(model=SAME, candidates=("sample:tiny-bf16", "sample:tiny-fp32"))
    report: ParentsReport = _last(parents.analyze(request))
    return report


@pytest.fixture(scope="module")
def clean() -> CheckReport:
    report: CheckReport = _last(check.analyze(check.CheckRequest(model="sample:tiny-fp32")))
    return report


@pytest.fixture(scope="module")
def two(passport: DtypeReport, difference: SparsityReport) -> dict[str, Report]:
    """A report of each kind, of which a quarter is covered."""
    return {
        "dtype": covering(passport, 0.25),
        "sparsity": covering(difference, 0.25, 1.0),
    }


TWO = ("dtype", "sparsity")
# What needs the whole.
WHOLE = re.compile(
    r"holds only|loses nothing|should lose nothing|half the memory|the weights fit|[Nn]othing (was )?(trained|wrong)|Use either|"
    r"holds the same weights|The same weights as|Nothing found in \d|Nothing needs|Read all of it"
)


@pytest.mark.parametrize("name", TWO)
def test_below_full_coverage_every_answer_says_its_reach(name: str, two: dict[str, Report]) -> None:
    report = two[name]
    layout, reach = addresses.layout(name), report.suffix()
    assert reach.startswith("Covers 25% of the weights") and "experts (8 tensors, no counterpart)" in reach
    assert report.headline.endswith(reach) and report.short_reach() == "25% covered" and not report.whole and report.covered_share == 0.25
    step = report.advice
    said = [report.headline, step.text, layout.summary(report), report.summary]
    said += [text_of(layout.headline(report, links)) for links in (True, False)]
    said += [report.text(), unescape(document([report])), link_previews.of_report(report).description]
    for each in said[:1] + said[2:]:
        assert "25% of the weights" in each
    for each in said[:-2]:
        assert not WHOLE.search(each), each
    assert layout.headline(report, True).count("25% of the weights") == 1


@pytest.mark.parametrize("name", TWO)
def test_at_full_coverage_and_without_an_account_nothing_changes(name: str, two: dict[str, Report]) -> None:
    without = two[name].model_copy(update={"coverage": ()})
    shares = [1.0] * len(getattr(two[name], "coverage", ()))
    for report in (without, covering(without, *shares)):
        assert report.whole and report.suffix() == report.short_reach() == ""
        assert "m-reach" not in addresses.layout(name).headline(report, True)
        assert report.headline == without.headline and report.advice == without.advice
        assert share_card.of_report(report) == share_card.of_report(without)
    assert share_card.of_report(two[name]) != share_card.of_report(without)
    assert not {"coverage", "covered_share"} & set(without.tables()["summary"].dropna(axis=1).columns)


def test_a_file_that_was_not_read_is_enough_unless_it_is_another_copy(passport: DtypeReport) -> None:
    other = NotRead(path="unet/model.safetensors", code="outside")
    files = (other, other.model_copy(update={"path": "b"}), NotRead(path="c", code="format"))
    partial = passport.model_copy(update={"coverage": (coverage(SAME, 1.0, "read", files_not_read=files),)})
    assert partial.short_reach() == "partly covered"
    assert partial.headline.endswith("Covers 100% of the weights in the files read; left out: 3 files not read.")
    assert "unet/model.safetensors not part of what was read" in text_of(accounts(partial))
    copy = other.model_copy(update={"code": "repeats"})
    same = passport.model_copy(update={"coverage": (coverage(SAME, 1.0, "read", files_not_read=(copy,)),)})
    assert same.whole and "repeats what was read, by its name" in text_of(accounts(same))


def test_candidates_that_are_no_parents_do_not_matter(copied: ParentsReport) -> None:
    assert copied.verdict == "same-weights"
    report = covering(copied, 1.0, 1.0, 0.1)
    assert report.whole and report.suffix() == ""


def test_the_least_covered_checkpoint_is_named(difference: SparsityReport) -> None:
    reach = covering(difference, 0.5, 0.25).suffix()
    assert reach.startswith("Covers 25% of the weights of sample:tiny-tuned; left out: ")


def test_a_check_against_a_base_lists_each_side_once() -> None:
    report: CheckReport = _last(check.analyze(check.CheckRequest(model="sample:tiny-tuned", base="sample:tiny-bf16")))
    sides = ["sample:tiny-tuned", "sample:tiny-bf16"]
    assert [each.ref for each in report.coverage] == list(report.tables()["coverage"].checkpoint.unique()) == sides
    partly = coverage("org/model", 0.9, "read").compared_as(coverage("org/model", 1.0))
    assert not partly.whole and partly.suffix() == "Covers 90% of the weights; left out: see coverage."


def test_badges_lists_and_tables_of_several_models_have_the_share(passport: DtypeReport, clean: CheckReport, library: Library) -> None:
    partial = of_model("org/part", covering(passport, 0.25)).model_copy(update={"id": "1" * 64})
    whole = of_model("org/whole", covering(passport, 1.0)).model_copy(update={"id": "2" * 64})
    for report in (partial, whole):
        assert library.add_result(report, public=True) is not None
    said = {part.name: (part.value, part.colour) for part in parts(library.model("org/part"))}
    assert said["passed through"] == ("bf16, 25% covered", "#855600") and said["fp16"] == ("weights fit, 25% covered", "#855600")
    assert {part.name: part.value for part in parts(library.model("org/whole"))}["fp16"] == "weights fit"
    for kind, page in ((MODELS, library.models(Query(text="org/"))), (RESULTS, library.results(Query(text="org/")))):
        assert text_of(listed(kind, page)).count("weights fit, 25% covered") == 1
        assert text_of(listed(kind, page)).count("25% covered") == 2
    (part,) = parts(None, [CHECKED], covering(clean, 0.25))
    assert part == ("checked", "nothing wrong, 25% covered", "#855600")
    rows = comparison(["org/part", "org/whole"], [Outcome("org/part", partial), Outcome("org/whole", whole)])
    assert text_of(rows).count("25% covered") == 1 and "weights fit" in text_of(rows)
    assert "25% covered" in joined(DtypeReport.compared([partial, whole])) and "Reach" not in joined(DtypeReport.compared([whole]))
    stored = storable_result(partial.model_dump_json(), key="", created=STAMP, contributor="")
    assert stored is not None and stored.reach == "25% covered"


def test_badges_and_lists_say_that_a_passport_is_of_a_sample(passport: DtypeReport, library: Library) -> None:
    extremes = passport.extremes.model_copy(update={"exact": False})
    sample = passport.model_copy(update={"mode": "quick", "blocks": 300, "extremes": extremes})
    for number, (share, blocks, said) in enumerate(
        ((1.0, 300, "sampled: 1% may differ"), (0.25, 300, "25% covered, sampled: 1% may differ"), (1.0, None, "sampled"))
    ):
        report = of_model(
            f"org/m{number}", covering(sample.model_copy(update={"blocks": blocks, "unseen": 0.01 if blocks else None}), share)
        )
        assert library.add_result(report.model_copy(update={"id": str(number) * 64}), public=True) is not None
        found = {part.name: (part.value, part.colour) for part in parts(library.model(f"org/m{number}"))}
        assert found["fp16"] == (f"weights fit, {said}", "#855600") and found["passed through"] == (f"bf16, {said}", "#855600")
        assert f"weights fit, {said}" in text_of(listed(MODELS, library.models(Query(text=f"org/m{number}"))))


def test_the_account_is_a_table_of_every_report(two: dict[str, Report], passport: DtypeReport) -> None:
    for report in two.values():
        found = report.tables()
        first = found["coverage"][found["coverage"].checkpoint == found["coverage"].checkpoint[0]].set_index("class")
        assert first.tensors["tied"] == 1 and first.parameters["unmatched"] == 750_000
        assert found["left_out"].iloc[0]["code"] == "unmatched" and found["files_not_read"].empty
        assert report.covered_share == 0.25
    empty = [table.frame(passport.model_copy(update={"coverage": ()})) for table in COVERAGE]
    assert all(table.empty and len(table.columns) for table in empty)


def test_a_scan_has_the_share_and_none_for_reports_without_an_account(passport: DtypeReport) -> None:
    column = next(path for name, _, path in tables._CHECKPOINT if name == "coverage")
    for report, share in ((covering(passport, 0.25), 0.25), (passport.model_copy(update={"coverage": ()}), None)):
        assert tables._at(report.model_dump(mode="json"), column) == share
    older = {name: value for name, value in passport.model_dump(mode="json").items() if name != "coverage"}
    assert tables._at(older, column) is None and tables._at(older, "storage.dtype") == "F32"


def test_classes_add_up_on_the_page(passport: DtypeReport) -> None:
    said = text_of(accounts(covering(passport, 0.25)))
    assert f"{SAME} read 30 250,000" in said and f"{SAME} no counterpart 8 750,000" in said
    assert f"{SAME} experts 8 750,000 no counterpart" in said


def test_text_of_checkpoints_is_text(two: dict[str, Report]) -> None:
    for name, report in two.items():
        hostile = report.model_copy(update={"coverage": (hostile_coverage(),)})
        page = document([hostile])
        assert "<img" not in page and HOSTILE in unescape(page) and "<img" not in addresses.layout(name).headline(hostile, True)


def test_a_stack_has_its_map_everywhere(copied: ParentsReport) -> None:
    first, second = copied.candidates[0].ref, copied.candidates[1].ref
    report = stacked(copied, first, second)
    (layers,) = [tile for tile in report.tiles() if tile.label == "Layers matched"]
    runs = ("what is outside the layers is that of {0}", "layers 0 to 3 are layers 0 to 3 of {0}", "layers 4 to 5 are layers 2 to 3 of {1}")
    assert layers.value == "7" and all(run.format(first, second)[1:] in layers.detail for run in runs)
    drawn = {plot.label: plot.draw(report) for plot in addresses.layout("parents").plots(report)}
    assert [len(trace.x) for trace in drawn["Layers and their parents"].data] == [5, 2]
    labels = [each.text for each in drawn["Ancestry"].layout.annotations]
    assert any("66.7% of the layers" in text for text in labels) and any("33.3% of the layers" in text for text in labels)
