"""Link previews: their tags are escaped, and their pictures drawn without a browser."""

import io
from html import unescape

import pytest
from PIL import Image, ImageDraw, ImageFont
from plotly.graph_objects import Bar, Figure, Heatmap, Scatter
from starlette.testclient import TestClient

from components.library import Library
from components.plots.raster import Box, draw
from components.site import link_previews
from tests.components.dtype_reports import HOSTILE, hostile_report, report
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


def test_tags_are_escaped() -> None:
    said = link_previews.tags(link_previews.of_report(hostile_report()), 'https://x"><script>/')
    assert "<script" not in said and "<img" not in said and HOSTILE[:20] in unescape(said)


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
