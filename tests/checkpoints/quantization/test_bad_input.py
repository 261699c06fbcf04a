"""Parts that do not fit, configurations that lie, indices out of range: never a crash, and no memory beyond what is stored."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from analyzers.checkpoints import Checkpoint, check_side
from analyzers.checkpoints.adapters.merged_file import read_values
from analyzers.core.errors import InvalidCheckpoint, UnsupportedWeights
from analyzers.dtype import DtypeRequest
from analyzers.dtype.collect import Chosen
from tests.checkpoints.quantization.test_layouts import LIBRARIES, Tensors, awq, fixture, gptq
from tests.checkpoints.test_scales import opened, positive

CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "left out": lambda tensor: None,
    "one row less": lambda tensor: tensor[:-1].contiguous() if tensor.dim() else None,
    "one column less": lambda tensor: tensor[..., :-1].contiguous() if tensor.dim() else None,
    "twice as many rows": lambda tensor: torch.cat([tensor, tensor]) if tensor.dim() else None,
    "flat": lambda tensor: tensor.reshape(-1),
    "turned": lambda tensor: tensor.T.contiguous() if tensor.dim() == 2 else None,
    "more axes": lambda tensor: tensor[None],
    "empty": lambda tensor: tensor[:0].contiguous() if tensor.dim() else None,
    "another dtype": lambda tensor: torch.zeros(tensor.shape, dtype=torch.float64),
    "bytes": lambda tensor: torch.ones(tensor.shape, dtype=torch.uint8),
}


def sources() -> dict[str, tuple[Tensors, Any]]:
    found = {library: fixture(library) for library in LIBRARIES}
    settings = {"quantization_config": {"bits": 4, "group_size": 32}}
    return found | {"gptq": (gptq(4, True, False)[0], settings), "awq": (awq()[0], settings)}


def read_all(checkpoint: Checkpoint) -> int:
    """Read every decoded tensor; return their number."""
    decoded = [tensor for tensor in checkpoint.tensors if tensor.stored is not None]
    for tensor in decoded:
        assert read_values(checkpoint.files, tensor, 0, tensor.elements).size == tensor.elements
    return len(decoded)


@pytest.mark.parametrize("change", CHANGES)
def test_any_part_that_does_not_fit(change: str, tmp_path: Path) -> None:
    for source, (tensors, config) in sources().items():
        for leaf in sorted({name.rpartition(".")[2] for name in tensors}):
            changed = {name: CHANGES[change](tensor.clone()) if name.endswith(f".{leaf}") else tensor for name, tensor in tensors.items()}
            kept = {name: tensor for name, tensor in changed.items() if tensor is not None}
            with opened(tmp_path / f"{source} {leaf}", kept, config) as checkpoint:
                read_all(checkpoint)


@pytest.mark.parametrize(
    "settings",
    [
        None, [], "gptq", {"bits": "4"}, {"bits": 10**30, "group_size": -1}, {"bits": 0}, {"bits": True}, {"bits": 5, "group_size": 7},
        {"config_groups": {"a": 1, "b": {"weights": []}, "c": {"weights": {"num_bits": 33, "group_size": 1}}}}, {"mode": 3, "bits": 4},
        {"affine_4_64": {"bits": 1, "group_size": 1 << 40}, "nvfp4": {"bits": 8, "mode": "mxfp8"}}, {"bits": 4, "group_size": 1},
    ],
)  # fmt: skip
def test_configurations_that_lie(settings: object, tmp_path: Path) -> None:
    for source, (tensors, _) in sources().items():
        with opened(tmp_path / source, tensors, {"quantization_config": settings}) as checkpoint:
            read_all(checkpoint)


@pytest.mark.parametrize("part", ["qzeros", "scales", "g_idx"])
def test_one_that_does_not_fit_among_others(part: str, tmp_path: Path) -> None:
    """It is named, its parts are not parameters, and the others are compared; where there are none, nothing is."""
    tensors, config = gptq(4, True, False)[0], {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    bad = {name.replace("m.", "n.", 1): tensor.clone() for name, tensor in tensors.items()}
    bad[f"n.{part}"] = bad[f"n.{part}"][:1]
    with opened(tmp_path / "both", tensors | bad, config) as checkpoint:
        assert read_all(checkpoint) == 1 and checkpoint.misfits == ("n.qweight",)
        assert [note.values for note in checkpoint.notes] == [{"tensors": 1, "name": "n.qweight"}]
        assert {t.name for t in checkpoint.tensors if not t.holds_scales} == {"m.weight", "n.qweight"}
        check_side(checkpoint, "Model", False)
        assert [t.name for t in Chosen.of(checkpoint, DtypeRequest(model="x")).floats] == ["m.weight"]
    with opened(tmp_path / "bad", bad, config) as checkpoint:
        assert checkpoint.misfits == ()  # they may be something else
        with pytest.raises(UnsupportedWeights, match=r'such as "n.qweight", and cannot be compared'):
            check_side(checkpoint, "Model", False)
        with pytest.raises(UnsupportedWeights, match=r'such as "n.qweight". The bits'):
            Chosen.of(checkpoint, DtypeRequest(model="x"))


@pytest.mark.parametrize(
    ("library", "part"),
    [
        ("mlx", "affine_4_64.scales"), ("mlx", "affine_4_64.biases"), ("bitsandbytes", "nf4.weight.absmax"),
        ("bitsandbytes", "nf4_nested.weight.nested_absmax"), ("bitsandbytes", "nf4.weight.quant_state.bitsandbytes__nf4"),
        ("compressed-tensors", "int4.weight_scale"),
    ],
)  # fmt: skip
def test_codes_without_a_part_among_others_are_named(library: str, part: str, tmp_path: Path) -> None:
    tensors, config = fixture(library)
    with opened(tmp_path / "whole", tensors, config) as checkpoint:
        assert checkpoint.misfits == ()
    with opened(tmp_path / "lost", {name: tensor for name, tensor in tensors.items() if name != part}, config) as checkpoint:
        assert [name.split(".")[0] for name in checkpoint.misfits] == [part.split(".")[0]]


@pytest.mark.parametrize("index", [-1, 4, 1 << 30])
def test_groups_out_of_range(index: int, tmp_path: Path) -> None:
    tensors, _ = gptq(4, True, False)
    tensors["m.g_idx"][77] = index
    with opened(tmp_path, tensors) as checkpoint, pytest.raises(InvalidCheckpoint, match=r'"m.g_idx" refers to groups that have no scales'):
        read_all(checkpoint)


@pytest.mark.parametrize(
    "state",
    [
        {"shape": [1 << 40, 1 << 40]}, {"shape": [4, -128]}, {"shape": "4"}, {"shape": [True, 512]}, {"shape": [1] * 400}, {"blocksize": 0},
        {"blocksize": 1 << 62}, {"blocksize": 63}, {"quant_type": ["nf4"]}, {"quant_type": "nf3"}, {"nested_offset": "1"}, [], "{",
    ],
)  # fmt: skip
def test_states_that_lie(state: Any, tmp_path: Path) -> None:
    tensors, _ = fixture("bitsandbytes")
    for name in [name for name in tensors if "quant_state" in name]:
        content = json.loads(bytes(tensors[name].tolist()))
        text = json.dumps(content | state) if isinstance(state, dict) else str(state)
        tensors[name] = torch.tensor(list(text.encode()), dtype=torch.uint8)
    with opened(tmp_path, tensors) as checkpoint:
        assert read_all(checkpoint) < 5


def test_memory_is_bounded_by_what_is_stored(tmp_path: Path) -> None:
    """One scale for many groups of nothing: shapes are checked before anything is made."""
    wide = {"a.weight": torch.zeros(1, 1 << 20, dtype=torch.uint32), "a.scales": positive(1, 1), "a.biases": positive(1, 1)}
    with opened(tmp_path, wide, {"quantization": {"bits": 2, "group_size": 1 << 24}}) as checkpoint:
        (tensor,) = (tensor for tensor in checkpoint.tensors if tensor.stored is not None)
        tracemalloc.start()
        try:
            assert len(set(read_values(checkpoint.files, tensor, 1 << 23, (1 << 23) + 1000).tolist())) == 1
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert tensor.elements == 1 << 24 and peak < 1_000_000
