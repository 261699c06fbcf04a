"""Lays out the result of the toy analyzer."""

from functools import partial

from components.forms.form import command, permalink
from components.results.layout import Caption, Layout, Piece, Tab
from components.results.tables import listed
from components.text.headline import card
from components.text.markup import head
from components.text.plain_text import html
from tests.toy import ToyReport
from tests.toy.columns import COUNT


def headline(report: ToyReport, links: bool) -> str:
    """Render the model and its number of tensors."""
    return card("Tensor count", head(html(report.checkpoint.ref), f"{report.tensors} tensors"))


RESULT: Layout[ToyReport] = Layout(
    title="Tensor count",
    name=lambda report: report.checkpoint.ref,
    headline=headline,
    permalink=permalink,
    command=command,
    tabs=(Tab("Count", [Caption(lambda report: f"It has {report.tensors} tensors."), Piece(partial(listed, COUNT))]),),
)
