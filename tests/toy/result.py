"""Lays out the result of the toy analyzer."""

from components.results.answer import layout_of, table
from components.results.layout import Tab
from tests.toy import ToyReport

RESULT = layout_of("Tensor count", (Tab("Tensors", [table(ToyReport, "tensors")]),))
