"""How often a run waits for the device: once for all that waits together, however many layers, tensors and sequences there are."""

from collections.abc import Generator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from analyzers.precision_variants import compare, headroom, reductions
from analyzers.precision_variants.losses import Objective
from analyzers.precision_variants.measure import Measurement
from analyzers.precision_variants.model_parts import ModelParts
from analyzers.precision_variants.variant_weights import STORED
from analyzers.precision_variants.variants import PRESETS
from tests.language_models.architectures import ARCHITECTURES, VOCABULARY, build
from tests.numerics.readbacks import operations

OPERATIONS = {"aten._local_scalar_dense.default", "aten.nonzero.default", "aten.masked_select.default", "aten.equal.default"}


class Copies(TorchFunctionMode):
    """Counts the calls that copy a tensor to the host. On a CPU they are no operations."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += getattr(func, "__name__", "") in ("cpu", "tolist")
        return func(*args, **(kwargs or {}))


class Scalars(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations whose result or size the host waits for, as of ``item``, ``float`` and ``bool``."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(func) in OPERATIONS
        return func(*args, **(kwargs or {}))


def readbacks(layers: int, sequences: int, inside: bool, monkeypatch: pytest.MonkeyPatch, variant: str = "bf16") -> int:
    """Of a reference and a variant, with the kernels of a GPU."""
    monkeypatch.setattr(reductions, "on_gpu", lambda tensor: True)
    model = build(ARCHITECTURES["llama"], "sdpa", torch.float32, num_hidden_layers=layers)
    token_ids = torch.randint(3, VOCABULARY, (sequences, 10), generator=torch.Generator().manual_seed(1))
    measured = Measurement(ModelParts.of(model), token_ids, "sdpa", Objective(), inside, None, 2)
    measured.anatomy.loaded(torch.bfloat16)
    copies, scalars = Copies(), Scalars()  # type: ignore[no-untyped-call]
    with copies, scalars:
        stored, _ = result(measured.reference(STORED, False))
        result(measured.variant(variant, PRESETS[variant], "sdpa", STORED, stored))
    return copies.count + scalars.count


def result(items: Generator[Any, None, Any]) -> Any:
    while True:
        try:
            next(items)
        except StopIteration as end:
            return end.value


def test_readbacks_depend_on_bytes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    few = readbacks(2, 2, False, monkeypatch)
    assert readbacks(2, 6, True, monkeypatch) == few
    assert readbacks(2, 2, False, monkeypatch, "bf16_fp32_residual") == few
    assert readbacks(5, 2, False, monkeypatch) == few
    for module in (compare, headroom):
        monkeypatch.setattr(module, "WAITING_BYTES", 0)
    assert readbacks(5, 2, False, monkeypatch) > few + 5


def test_operations_depend_on_shapes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernels of a GPU; views take none."""
    monkeypatch.setattr(reductions, "on_gpu", lambda tensor: True)
    counts = []
    for number, rows in ((3, 2), (30, 7)):
        pairs = [(torch.ones(rows, 8 + number % 2, dtype=torch.bfloat16), torch.ones(rows, 8 + number % 2)) for number in range(number)]
        for given in (pairs, [(ref, None) for _, ref in pairs]):
            with operations() as found:
                reductions.totals(given)
            counts.append({name: times for name, times in found.items() if name not in ("view", "unbind", "split_with_sizes", "detach")})
    assert counts[:2] == counts[2:]
