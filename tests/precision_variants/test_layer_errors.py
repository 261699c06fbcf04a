"""Errors of every decoder layer, compared with forward hooks on the whole model, autograd and plain NumPy."""

from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch
from torch import Tensor

from analyzers.precision_variants.measurements import TensorError, Variant
from analyzers.precision_variants.variants import PRESETS
from tests.cases import few
from tests.language_models.architectures import ARCHITECTURES, build
from tests.precision_variants.runs import lockstep, result
from tests.precision_variants.test_run import ATTENTION, TOKENS, loaded, whole

FAMILIES = ("llama", "gpt2", "opt", "gemma2", "mixtral", "bloom")


def relative(x: Tensor, ref: Tensor) -> float:
    """rms(x - ref) / rms(ref)."""
    values, exact = x.double().numpy().ravel(), ref.double().numpy().ravel()
    return float(np.sqrt(np.mean((values - exact) ** 2)) / np.sqrt(np.mean(exact**2)))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", few(FAMILIES, {0, 1, 4}))
def test_the_middle_has_every_decoder_layer(name: str, layers: int, tmp_path: Path) -> None:
    """Forward and backward, each layer's own output: that of the last one is taken before the final norm."""
    per_layer = {key: value[:layers] for key, value in ARCHITECTURES[name].settings.items() if isinstance(value, list) and len(value) == 2}
    depth = {"num_hidden_layers": layers} | ({"n_layer": layers} if name in ("gpt2", "bloom") else {})
    model = build(ARCHITECTURES[name], ATTENTION[name], torch.float32, **per_layer, **depth)
    exact, rounded = (whole(loaded(model, tmp_path, dtype)) for dtype in (torch.float32, torch.bfloat16))
    together = lockstep(model, TOKENS, ATTENTION[name], {"bf16": PRESETS["bf16"]})
    found: Variant = result(together.run())["bf16"]
    assert together.report(False).layers == layers
    rows: dict[tuple[str, int | None], TensorError] = {
        (row.kind, row.layer): row for row in found.tensors if row.kind in ("hidden", "hidden_grad")
    }
    for kind, (middle, largest, at) in {
        "hidden": (found.summary.mid_median, found.summary.mid_max, found.summary.mid_max_layer),
        "hidden_grad": (found.summary.mid_median_bw, found.summary.mid_max_bw, found.summary.mid_max_bw_layer),
    }.items():
        errors = [relative(rounded[kind, f"layers.{layer}"], exact[kind, f"layers.{layer}"]) for layer in range(layers)]
        for layer, error in enumerate(errors):
            row = rows[kind, layer]
            assert row.rms_rel == pytest.approx(error, rel=1e-6)
        assert middle == pytest.approx(median(errors), rel=1e-6) and largest == pytest.approx(max(errors), rel=1e-6)
        assert at == int(np.argmax(errors))
        assert set(rows) >= {(kind, layer) for layer in range(-1, layers)}
    ends = rows["hidden", -1], rows["hidden_grad", -1]
    assert (found.summary.embeddings, found.summary.first_layer_bw) == tuple(row.rms_rel for row in ends)
    assert found.summary.head_bw == rows["hidden_grad", layers - 1].rms_rel
