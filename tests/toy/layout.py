"""Lays out the result of the toy analyzer, and asks its question."""

from components.analyses.question import Question
from components.result.layout import Layout, Tab, Table

LAYOUT = Layout("Tensor count", (Tab("Tensors", [Table("tensors")]),))

QUESTION = Question(
    heading="How many tensors?",
    about="Name a model.",
    button="Count",
    examples={"tiny-bf16": {"model": "sample:tiny-bf16"}},
    front=("mode",),
    less="quick mode",
)
