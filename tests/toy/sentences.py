"""The answer."""

from analyzers.base import NextStep
from tests.toy import ToyReport


def headline(report: ToyReport) -> str:
    """The number of tensors."""
    return f"{report.tensors} tensors"


def next_step(report: ToyReport) -> NextStep:
    """Another analyzer."""
    return NextStep("Count them again.", "toy", report.checkpoint.ref)
