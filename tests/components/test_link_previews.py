"""Link previews: the tags of every page, and pictures drawn without a browser."""

import io
from html import unescape
from urllib.parse import quote

import pytest
from PIL import Image, ImageDraw, ImageFont
from plotly.graph_objects import Bar, Figure, Heatmap, Scatter
from starlette.testclient import TestClient

from analyzers import ANALYZERS
from components.library import Library
from components.plots.raster import Box, draw
from components.site import link_previews, share_card
from tests.cases import few
from tests.components.conflict_reports import conflict_report
from tests.components.dtype_reports import HOSTILE, hostile_report, report
from tests.components.exit_reports import exit_report
from tests.components.precision_reports import precision_report
from tests.components.sparsity_reports import sparsity_report
from tests.components.test_routes import ID, client

__all__ = ["client"]
HERE = "https://example.org/app/"


def picture(png: bytes) -> Image.Image:
    """A picture of the size that sites expect, with something on it."""
    found = Image.open(io.BytesIO(png))
    assert found.format == "PNG" and found.size == (1200, 630)
    assert len(found.convert("RGB").getcolors(1 << 20) or ()) > 20
    return found


def test_the_picture_of_a_result_is_drawn_once_and_others_are_not_found(client: TestClient, library: Library) -> None:
    library.add_result(report("org/name", id=ID), public=True)
    first, second = (client.get(f"/card/{ID}.png") for _ in range(2))
    assert first.headers["content-type"] == "image/png" and first.content == second.content
    picture(first.content)
    assert client.get(f"/card/{'b' * 64}.png").status_code == 404
    assert client.get("/card/..%2f..%2fetc.png").status_code == 404


@pytest.mark.parametrize("name", few([*ANALYZERS, "library", "methods"], {0, 3, 6}))
def test_every_page_has_a_picture_of_its_question(client: TestClient, name: str) -> None:
    picture(client.get(f"/card/{name}.png").content)


@pytest.mark.parametrize("made", [report, sparsity_report, conflict_report, precision_report, exit_report, hostile_report])
def test_every_kind_of_result_is_drawn(made: object) -> None:
    assert callable(made)
    picture(share_card.of_report(made()))


def test_a_stored_result_names_its_picture_by_its_whole_address(client: TestClient, library: Library) -> None:
    library.add_result(report("org/name", id=ID), public=True)
    page = client.get(f"/result/{ID}", headers={"X-Forwarded-Proto": "https", "X-Forwarded-Host": "example.org"}).text
    assert f'<meta property="og:image" content="https://example.org/card/{ID}.png">' in page
    assert '<meta name="twitter:card" content="summary_large_image">' in page


def test_tags_are_escaped() -> None:
    said = link_previews.tags(link_previews.of_report(hostile_report()), 'https://x"><script>/')
    assert "<script" not in said and "<img" not in said and HOSTILE[:20] in unescape(said)


def test_gradios_own_previews_give_way_to_ours() -> None:
    page = b"""<head><meta charset="utf-8" /><meta property="og:url" content="{url}" /><meta
        name="twitter:title" content="Gradio" /><title>Gradio</title><script>config = '<meta property="og:url">'</script></head>"""
    before, after = link_previews.split(page)
    assert before.endswith(b'<meta charset="utf-8" />')
    assert after.split() == b"""<script>config = '<meta property="og:url">'</script></head>""".split()


def test_a_permalink_of_a_stored_sample_says_its_headline_and_any_other_the_question(library: Library) -> None:
    made = conflict_report()
    assert link_previews.of_page("conflict", "model=sample:tiny-bf16").description == ANALYZERS["conflict"].component("page").PAGE.about
    assert link_previews.of_page("", f"model={quote(HOSTILE)}").picture == "card/dtype.png"
    assert link_previews.of_report(made).description == made.headline
    with pytest.raises(KeyError):
        link_previews.page_at("nowhere")


@pytest.mark.parametrize(
    "figure",
    [
        Figure([Bar(x=[1, 2], y=[3, 4])]),
        Figure([Scatter(x=[1, 2, 3], y=[1, None, 100], error_y={"array": [1, 1, 1]})], {"yaxis": {"type": "log"}}),
        Figure([Heatmap(x=["a", "b"], y=["c", "d"], z=[[1, None], [2, 3]])]),
        Figure([Heatmap(x=["a"], y=["c"], z=[[1]])]),
        Figure([Heatmap(x=[1, 2], y=[3], z=[[1]])]),
        Figure([Heatmap(x=["a"], y=["c", "d"], z=[[1], [2]])]),
        Figure([Heatmap(x=[*range(90)], y=[*range(700)], z=[[1] * 90] * 700)], {"yaxis": {"autorange": "reversed"}}),
        Figure([Scatter(x=[], y=[])]),
        Figure([Bar(x=[1], y=[0])]),
    ],
)
def test_odd_figures_are_drawn_within_their_box(figure: Figure) -> None:
    image = Image.new("RGB", (400, 300), "white")
    draw(ImageDraw.Draw(image, "RGBA"), figure, Box(20, 20, 380, 280), ImageFont.load_default(12))
    assert image.crop((390, 0, 400, 300)).getcolors() == [(3000, (255, 255, 255))]


@pytest.mark.parametrize("weight", ["Regular", "Bold"])
def test_the_font_of_cards_has_every_character_of_our_sentences(weight: str) -> None:
    font = share_card._font(40, weight)

    def drawn(character: str) -> bytes:
        image = Image.new("L", (80, 80))
        ImageDraw.Draw(image).text((10, 10), character, 255, font)
        return image.tobytes()

    missing = drawn("\ufffe")
    assert not [character for character in "aZ09⁻⁰¹²³⁴⁵⁶⁷⁸⁹→–—±·×≤≥…“”’é" if drawn(character) == missing]
