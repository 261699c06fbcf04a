"""What rounding leaves of an update, compared with the casts of torch."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from analyzers.comparison.sparsity.adapters import GRIDS
from analyzers.numerics.quantize_kernels import update_lost

CASTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"bf16": lambda x: x.bfloat16().float(), "fp16": lambda x: x.half().float()}

_GRIDS: dict[str, tuple[int, int, float]] = {str(name): grid for name, grid in GRIDS.items()}


def lost(base: torch.Tensor, merged: torch.Tensor, cast: Callable[[torch.Tensor], torch.Tensor]) -> tuple[float, ...]:
    """Count and sum with torch, in float64."""
    old, new, update = cast(base), cast(merged), merged.double() - base.double()
    touched = (update != 0) & update.isfinite()
    finite = touched & old.isfinite() & new.isfinite()
    error = (new.double() - old.double() - update)[finite]
    return (
        int(touched.sum()), int(((old != new) & touched).sum()), int((~new.isfinite() & touched).sum()),
        float((error**2).sum()), float((update[finite] ** 2).sum()),
    )  # fmt: skip


def measured(base: torch.Tensor, merged: torch.Tensor, name: str) -> tuple[float, ...]:
    """Call the compiled loop."""
    return update_lost(base.numpy().ravel(), merged.numpy().ravel(), *_GRIDS[name])


def _weights(stored: torch.dtype = torch.float32) -> torch.Tensor:
    rng = np.random.default_rng(0)
    return torch.from_numpy((rng.standard_normal((64, 300)) * 0.02).astype(np.float32)).to(stored).float()


@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1e-9, 1e-5, 1e-3, 1.0])
def test_the_loss_is_that_of_torch_casts(name: str, stored: torch.dtype, size: float) -> None:
    base = _weights(stored)
    update = torch.from_numpy(np.random.default_rng(1).standard_normal(base.shape).astype(np.float32)) * size
    update[:16] = 0
    found, expected = measured(base, base + update, name), lost(base, base + update, CASTS[name])
    assert found[:3] == expected[:3]
    assert found[3:] == pytest.approx(expected[3:], rel=1e-9)


def test_a_bf16_base_keeps_nothing_of_updates_far_below_its_resolution() -> None:
    base = _weights(torch.bfloat16)
    merged = base * (1 + 2.0**-12)
    touched, changed, _, error, square = measured(base, merged, "bf16")
    assert touched == base.numel() and changed == 0 and error == square > 0


def test_values_that_become_infinite_are_counted_apart() -> None:
    base = _weights()
    base[0, :3], merged = torch.tensor([60000.0, 1e-39, torch.inf]), base.clone()
    merged[0, :3] = torch.tensor([65520.0, 4e-39, 1.0])
    merged[1] += 1e-3
    for name in CASTS:
        found, expected = measured(base, merged, name), lost(base, merged, CASTS[name])
        assert found[:3] == expected[:3] and found[2] == (name == "fp16")
        assert found[3:] == pytest.approx(expected[3:], rel=1e-9)
