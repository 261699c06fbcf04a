"""Models that accelerate dispatched module by module, as over several devices: here all hooks move tensors to the same one."""

import json
from typing import Any

import accelerate
import pytest

import mantissa
from analyzers.language_models.load import OpenModel
from tests.comparison.differences import differences

MODEL = "sample:tiny-fp32"
MODULES = {"model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head", *(f"model.layers.{number}" for number in range(4))}
ANALYSES: dict[str, Any] = {
    "conflict": lambda: mantissa.conflict(MODEL, dtype="float32", device="cpu"),
    "precision": lambda: mantissa.precision(MODEL, variants=("bf16",), sequence_length=32, device="cpu"),
    "exit": lambda: mantissa.exit(MODEL, dtype="float32", device="cpu"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["conflict", "exit", "precision"])
def test_a_dispatched_model_gives_the_same_report(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ANALYSES[name]()
    load, dispatched = OpenModel.load, []

    def dispatch(self: OpenModel) -> Any:
        places = dict.fromkeys(sorted(MODULES), "cpu")
        dispatched.append(accelerate.dispatch_model(load(self), places, main_device="cpu", force_hooks=True))
        return dispatched[-1]

    monkeypatch.setattr(OpenModel, "load", dispatch)
    hooked = ANALYSES[name]()
    assert all(hasattr(layer, "_hf_hook") for model in dispatched for layer in model.model.layers) and dispatched
    left_out = {"id", "timing", "environment", "cost"}
    one, other = (json.loads(report.model_dump_json(exclude=left_out)) for report in (plain, hooked))
    assert list(differences(one, other, 1e-12)) == []
