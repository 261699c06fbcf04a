"""Sentences of the toy analyzer: the answer and the next step."""

from analyzers.base import NextStep
from tests.toy import ToyReport


def headline(report: ToyReport) -> str:
    """Return a sentence on the number of tensors."""
    return f"{report.tensors} tensors"


def next_step(report: ToyReport) -> NextStep:
    """Suggest another analyzer."""
    return NextStep("Count them again.", "toy", report.checkpoint.ref)
