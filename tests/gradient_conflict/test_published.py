"""The published run: what counts as the same setting."""

from typing import Any

import pytest

from analyzers.gradient_conflict import ConflictReport, ConflictRequest
from analyzers.gradient_conflict.published import MIRRORS, SETTING, published
from tests.gradient_conflict.reports import conflict_report


def as_published(ref: str = "meta-llama/Llama-2-7b-hf", **changes: Any) -> ConflictReport:
    """A report of the tiny sample with the facts of the published run in place of its own, but for ``changes`` of the request."""
    found = conflict_report(ffn="topk")
    request = ConflictRequest(**{**SETTING, **changes})
    topk = None
    if request.ffn == "topk" and found.ffn.topk is not None:
        layers = (31,) if request.topk_layers == "last" else (0, 31)
        topk = found.ffn.topk.model_copy(update={"layers": layers, "select": request.select, "share_of_width": request.topk})
    data = {"source": f"datasets/{request.data}", "samples": request.samples, "template": request.template, "truncated": 0}
    return found.model_copy(
        update={
            "request": request,
            "checkpoint": found.checkpoint.model_copy(update={"ref": ref}),
            "data": found.data.model_copy(update=data),
            "ffn": found.ffn.model_copy(update={"variant": request.ffn, "unit": request.unit, "topk": topk}),
            "dtype": request.dtype,
        }
    )


@pytest.mark.parametrize("ref", sorted(MIRRORS))
def test_the_published_setting_is_comparable(ref: str) -> None:
    assert as_published(ref).is_published_setting and len(published()) == 32
    assert as_published(ref, gamma=0.1, weights=False, attention="eager").is_published_setting
    assert len(as_published(ref).tables()["published"]) == 32


@pytest.mark.parametrize(
    "changes",
    [
        {"ref": "meta-llama/Llama-2-7b-chat-hf"},
        {"ffn": "original"},
        {"select": "up"},
        {"topk_layers": "all"},
        {"data": "yahma/alpaca-cleaned"},
        {"seed": 0},
        {"loss": "sum"},
        {"dtype": "float16"},
    ],
)
def test_another_setting_is_not(changes: dict[str, Any]) -> None:
    found = as_published(**changes)
    assert not found.is_published_setting and found.tables()["published"].empty
