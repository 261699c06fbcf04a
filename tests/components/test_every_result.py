"""The results of all analyzers: one fragment for page, document and frame, and card, Markdown, CSV and API that say the same."""

import gzip
import io
import json
import math
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pandas
import plotly.graph_objects as go
import pytest
from PIL import Image

from analyzers import ANALYZERS
from analyzers.check.words import FINDINGS
from analyzers.core.markdown import plain
from analyzers.core.options import is_subject
from components.api import short
from components.result.card import SIZE, card
from components.result.files import file_name, file_of
from components.result.layout import Figure, Table, layout_of
from components.result.markdown import markdown
from components.result.render import ENDINGS, FIRST_ROWS, document, fragment, rows
from components.text import prose, shown
from tests.components.reports import NAMES, PAGES, VARIANTS, example, hostile, partial, placed

ADDRESS = f"result/{'0' * 64}"
VOID = {"br", "img", "input", "link", "meta", "hr", "wbr"}
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=["example", "hostile", "partial"])
every_name = pytest.mark.parametrize("name", NAMES)


class Parsed(HTMLParser):
    """The elements, texts, tables and figures of HTML. Fails if an element is not closed in order, or an attribute or an id is repeated."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.feed(html)
        self.close()
        assert not self.open
        ids = [attributes["id"] for _, attributes in self.tags if "id" in attributes]
        assert len(ids) == len(set(ids))

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        assert len(attributes) == len(dict(attributes)), (tag, attributes)
        self.tags.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] in (["script"], ["style"]):
            return
        self.text.append(data)
        if self.open and {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

    def values(self, attribute: str) -> list[str]:
        return [attributes[attribute] for _, attributes in self.tags if attribute in attributes]


@cache
def page_of(variant: Callable[[str], Any], name: str) -> Parsed:
    """Parse the fragment of a report that has an address."""
    return Parsed(fragment(variant(name), address=ADDRESS))


@cache
def alone(variant: Callable[[str], Any], name: str) -> Parsed:
    """Parse the document of a report."""
    return Parsed(document([variant(name)]))


def texts(value: Any) -> Iterator[str]:
    """Yield every text in JSON."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts(each)
    elif isinstance(value, str):
        yield value


@every_variant
@every_name
def test_a_fragment_is_well_formed_and_text_stays_text(name: str, variant: Callable[[str], Any]) -> None:
    page = page_of(variant, name)
    assert {tag for tag, _ in page.tags}.isdisjoint({"img", "script", "iframe"})
    assert not [each for _, attributes in page.tags for each in attributes if each.startswith("on")]
    links = page.values("href")
    assert links and not [link for link in links if not re.match(r"(\./|https://huggingface\.co/)", link)]
    said = [*page.text, *(value for _, attributes in page.tags for value in attributes.values())]
    assert not [text for text in said if "\u202e" in text]
    assert any("onerror=alert(1)" in text for text in page.text) == (variant is hostile)
    cells = [cell for table in page.tables for row in table[1:] for cell in row]
    assert not [text for text in cells if re.fullmatch(r"-?(nan|inf|NaN|Infinity|None)", text)]


@every_variant
@every_name
def test_a_document_is_well_formed_and_needs_nobody(name: str, variant: Callable[[str], Any]) -> None:
    page = alone(variant, name)
    assert not (page.values("src") + page.values("data-rows"))
    policy = next(attributes["content"] for _, attributes in page.tags if attributes.get("http-equiv"))
    assert policy.startswith("default-src 'none'") and "http" not in policy
    assert "img" not in {tag for tag, _ in page.tags}


@every_variant
@every_name
def test_every_row_is_in_page_csv_and_document(name: str, variant: Callable[[str], Any]) -> None:
    report = variant(name)
    document_tables, page_tables = alone(variant, name).tables, page_of(variant, name).tables
    with zipfile.ZipFile(io.BytesIO(file_of(report, "zip", "").content)) as packed:
        files = {path: packed.read(path).decode() for path in packed.namelist()}
    assert set(files) == {f"{key}.csv" for key in report.tables()}
    tables = [(place, part, inner) for place, part, inner in placed(report) if isinstance(part, Table)]
    for (place, part, inner), whole, first in zip(tables, document_tables, page_tables, strict=False):
        declared = part.declared(inner)
        columns, every = declared.shown(inner, "page"), list(declared.rows(inner))
        cells = [[shown(column.text_of(row), column.longest) for column in columns] for row in every]
        assert whole[1:] == cells and first[1:] == cells[:FIRST_ROWS]
        assert Parsed(f"<table>{rows(report, place)}</table>").tables == [cells]
        if inner is report:
            written = pandas.read_csv(io.StringIO(files[f"{part.key}.csv"]), keep_default_na=False, dtype=str)
            assert list(written.columns) == list(declared.frame(report).columns) and len(written) == len(every)
            assert not [text for column in written for text in written[column] if text[:1] in "=@\t\r" and text]
    assert len(document_tables) == len(page_tables) >= len(tables)


# Tables with headings that no tab has: drawn in a figure, in the methods, or only of a merge.
NOT_IN_A_TAB = {"dtype": {"movable"}, "sparsity": {"published"}, "parents": {"parents", "layer_weights"}}


@pytest.mark.parametrize("name", [each for each in NAMES if each != "compare"])  # which shows those of the two reports in it
def test_every_table_for_people_is_in_a_tab(name: str) -> None:
    report = example(name)
    shown_tables = {part.key for _, part, _ in placed(report) if isinstance(part, Table)}
    declared = {each.key for each in report.declared_tables() if each.shown(report, "page") and list(each.rows(report))}
    assert declared - shown_tables == NOT_IN_A_TAB.get(name, set())


@every_variant
@every_name
def test_tiles_are_the_same_everywhere(name: str, variant: Callable[[str], Any]) -> None:
    report = variant(name)
    tiles = layout_of(report).tiles(report)
    page, written = unescape(fragment(report, address=ADDRESS)), markdown(report, "https://example.org/")
    for tile in tiles:
        assert f'<p class="value">{shown(tile.value)}</p>' in page
        assert f">{shown(report.tag(tile))}</span>" in page and unescape(prose(tile.detail)) in page
        assert plain(tile.value) in written and plain(report.tag(tile)) in written
    assert all(unescape(prose(note.text)) in page for note in report.notes)
    answer = short(report, ADDRESS)
    assert answer["tiles"] == [tile.model_dump() for tile in tiles] and answer["headline"] == report.headline
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    drawn = card(report)
    picture = Image.open(io.BytesIO(drawn))
    assert picture.size == SIZE and picture.format == "PNG"
    if tiles:
        changed = report.model_copy(update={"answer": report.answer.model_copy(update={"text": "Another answer."})})
        assert card(changed) != drawn


@every_variant
@every_name
def test_figures_are_plotly_json_in_which_text_stays_text(name: str, variant: Callable[[str], Any]) -> None:
    drawn = page_of(variant, name).values("data-figure")
    assert bool(drawn) == (name != "check")
    found: list[Any] = []
    for content in drawn:
        figure = json.loads(content, parse_constant=pytest.fail)
        go.Figure(figure)  # raises ValueError for what Plotly does not know
        found += texts(figure)
    assert not [text for text in found if "<img" in text or "\u202e" in text]
    assert any("&lt;img" in text for text in found) == (variant is hostile and name != "check")


# Analyzer, figure, table, its columns, and what the figure draws of them.
DRAWN: list[tuple[str, str, str, list[str], Callable[[go.Figure], list[Any]], float]] = [
    ("dtype", "Largest magnitude by layer", "layers", ["abs_max"], lambda figure: [y for trace in figure.data for y in trace.y], 1),
    ("sparsity", "Sparsity by layer and role", "layers", ["attention", "mlp"], lambda figure: list(figure.data[0].z[1:3]), 100),
    ("precision", "Differences of log-probabilities", "variants", ["logprob_mean"], lambda figure: list(figure.data[0].x), 1),
    ("conflict", "Share of each sample", "samples", ["share"], lambda figure: list(figure.data[0].y), 100),
    ("exit", "Cosines at the head", "methods", ["cosine_p50"], lambda figure: [trace.x[0] for trace in figure.data], 1),
]


@pytest.mark.parametrize(("name", "title", "key", "columns", "values", "scale"), DRAWN, ids=[row[0] for row in DRAWN])
def test_a_figure_draws_the_values_of_the_table(name: str, title: str, key: str, columns: list[str], values: Any, scale: float) -> None:
    report = example(name)
    table = Table(key).declared(report).frame(report)[columns].to_numpy().ravel()
    drawn = [each / scale for each in numbers(values(layout_of(report).figures(report)[title]))]
    assert sorted(drawn) == pytest.approx(sorted(each for each in table if not math.isnan(each))) and drawn


def numbers(values: Any) -> Iterator[float]:
    for value in values:
        if value is not None:
            yield from numbers(value) if hasattr(value, "__len__") else [float(value)]


@every_variant
@every_name
def test_a_result_has_at_most_five_tabs_and_nothing_twice(name: str, variant: Callable[[str], Any]) -> None:
    report = variant(name)
    page = page_of(variant, name)
    tabs = [attributes for tag, attributes in page.tags if tag == "input" and attributes.get("type") == "radio"]
    assert 1 <= len(tabs) - (variant is partial) <= 5
    titles = Counter(part.title if isinstance(part, Figure) else part.key for _, part, _ in placed(report))
    assert titles.most_common(1)[0][1] == 1


@pytest.mark.parametrize("name", [each for each in NAMES if example(each).coverage])
def test_what_is_not_covered_is_said_everywhere(name: str) -> None:
    report = partial(name)
    assert report.suffix() and not report.whole
    for text in (fragment(report), document([report]), markdown(report, ""), short(report, "")["headline"]):
        assert re.search(r"Covers \d+%|Covers [\d.]+%", text), text[:400]
    assert "the vision tower" in "".join(Parsed(fragment(report)).text) and "Coverage</label>" in fragment(report)
    assert "Coverage</label>" not in fragment(example(name)) or not example(name).whole
    tags = [report.tag(tile) for tile in layout_of(report).tiles(report) if not tile.whole]
    assert all("covered" in tag for tag in tags)


@every_name
def test_files_have_safe_names_and_the_whole_report(name: str) -> None:
    for variant in VARIANTS:
        report = variant(name)
        assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,95}", file_name(report))
        made = {ending: file_of(report, ending, "https://example.org/") for ending in ENDINGS}
        assert [each.name for each in made.values()] == [
            f"{file_name(report)}{'-tables' if ending == 'zip' else ''}.{ending}" for ending in made
        ]
        read = json.loads(made["json"].content, parse_constant=pytest.fail)
        assert read["id"] == report.id and "\u202e".encode() not in made["json"].content + made["md"].content
    assert type(example(name)).model_validate_json(file_of(example(name), "json", "").content) == example(name)


def test_a_text_in_csv_is_no_formula() -> None:
    report = example("dtype")
    named = report.model_copy(update={"tensors": (report.tensors[0].model_copy(update={"name": "=1+1"}),)})
    with zipfile.ZipFile(io.BytesIO(file_of(named, "zip", "").content)) as packed:
        assert b"'=1+1" in packed.read("tensors.csv")


@pytest.mark.parametrize("place", ["", "x", "0", "9.0", "0.99", "0.0.0", "-1.-1", "0.0"])
def test_a_place_without_a_table_is_an_error(place: str) -> None:
    with pytest.raises(KeyError):
        rows(example("conflict"), place)


@pytest.mark.parametrize("home", ["./", "../", "https://example.org/"])
def test_links_of_a_result_begin_at_the_home_page(home: str) -> None:
    report = example("dtype")
    page = Parsed(fragment(report, home=home, address=ADDRESS))
    assert {link.startswith(home) for link in page.values("href")} == {True}
    assert f"{home}{ADDRESS}.json" in page.values("href")


def test_a_result_of_2000_tensors_is_small() -> None:
    report = example("dtype")
    row = report.tensors[0]
    many = tuple(row.model_copy(update={"name": f"model.layers.{number}.mlp.down_proj.weight"}) for number in range(2000))
    content = fragment(report.model_copy(update={"tensors": many}), address=ADDRESS).encode()
    assert len(content) < 1_500_000 and len(gzip.compress(content, 4)) < 200_000


@pytest.mark.parametrize("name", PAGES)
def test_a_question_has_examples_and_few_options_in_view(name: str) -> None:
    question, request = ANALYZERS[name].component("layout").QUESTION, ANALYZERS[name].request_model()
    requests = [request(**typed) for typed in question.examples.values()]
    assert len(requests) >= 3 and requests[0] == example(name).request
    assert len(question.front) <= 4 and not [field for field in question.front if is_subject(request, field)]
    assert (question.tokens(requests[0]) > 0) == ANALYZERS[name].runs_model


def test_a_finding_is_shown_whole() -> None:
    """Its sentence names the fault and the remedy."""
    finding = max(FINDINGS.values(), key=len)
    assert len(finding) > 200
    report = example("check")
    first = report.findings[0].model_copy(update={"detail": finding})
    assert finding in unescape(fragment(report.model_copy(update={"findings": (first,)}), address=ADDRESS))
