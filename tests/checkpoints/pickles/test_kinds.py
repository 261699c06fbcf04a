"""Every kind of file that torch writes: each tensor that is read is what torch.load gives, and each other one is named."""

import argparse
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from analyzers.checkpoints import Access, open_checkpoint
from analyzers.checkpoints.checkpoint_coverage import read_coverage
from analyzers.checkpoints.formats.pickles.torch_file import read_pickled
from analyzers.checkpoints.formats.safetensors_header import Omitted
from analyzers.core.errors import UnsupportedWeights
from tests.checkpoints.counting_file import MemoryFile
from tests.checkpoints.pickles.kinds import BESIDE, KINDS, WEIGHTS, Numbers, Settings, noted, programs
from tests.checkpoints.pickles.pickled_files import contents, expected, loaded, saved

pytestmark = pytest.mark.filterwarnings("ignore")


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors below a value that torch has loaded, by their names."""
    if isinstance(value, torch.Tensor):
        yield prefix, value
    elif isinstance(value, dict | list | tuple):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(each, f"{prefix}.{key}".strip("."))


def _assert_weights(data: bytes, weights: dict[str, torch.Tensor]) -> None:
    file = MemoryFile(data, "model.pt")
    ours = dict(contents(file, read_pickled(file)))
    assert list(ours) == list(weights)
    assert ours == expected(weights)


@pytest.mark.parametrize(("value", "keys", "beside"), [pytest.param(*case, id=name) for name, *case in KINDS])
def test_every_tensor_is_read_or_named(value: Any, keys: tuple[str, ...], beside: list[str]) -> None:
    for protocol in (2, 4, 5):
        data = saved(value, protocol=protocol)
        theirs = chosen = loaded(data, weights_only=False)
        for key in keys:
            chosen = chosen[key]
        state = {name: tensor for name, tensor in _flat(chosen) if keys or name.partition(".")[0] not in beside}
        _assert_weights(data, state)
        header = read_pickled(MemoryFile(data))
        nested = [note.values for note in header.notes if note.code == "nested"]
        assert nested == [{"key": ".".join(keys)}] * bool(keys)
        assert [row.what for row in header.omitted] == beside
        for row in header.omitted:
            tensors = dict(_flat(theirs[row.what]))
            assert (row.tensors, row.parameters) == (len(tensors), sum(tensor.numel() for tensor in tensors.values()))


def test_strides_and_ties() -> None:
    found = {tensor.name: tensor for tensor in read_pickled(MemoryFile(saved(KINDS[0][1]))).tensors}
    assert found["tied"][1:] == found["alias"][1:]
    assert found["one_row"].strides is None and found["t"].strides == (1, 8) and found["expanded"].strides == (0, 0)


@pytest.mark.parametrize("beside", BESIDE)
def test_weights_next_to_anything(beside: str) -> None:
    for protocol in (2, 3, 4, 5):
        _assert_weights(saved({"state_dict": WEIGHTS, "thing": BESIDE[beside], "epoch": 3}, protocol=protocol), WEIGHTS)


def test_what_stayed_opaque_is_named() -> None:
    header = read_pickled(
        MemoryFile(saved({"model": WEIGHTS, "run": argparse.Namespace(lr=1), "stats": Settings(stages={}, scale=torch.ones(4))}))
    )
    assert [(note.code, note.values) for note in header.notes[1:]] == [
        ("opaque", {"classes": ("argparse.Namespace", f"{Settings.__module__}.Settings")}),
        ("hidden", {"storages": 1, "bytes": 16}),
    ]
    assert read_pickled(MemoryFile(saved(WEIGHTS))).notes == ()


# What makes a tensor, and the name that the refusal gives it.
UNREADABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "sparse": (lambda: noted(torch.eye(3).to_sparse()), "torch._utils._rebuild_sparse_tensor"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8), "torch._utils._rebuild_qtensor"),
    "meta": (lambda: nn.Parameter(torch.empty(8, device="meta")), "torch._utils._rebuild_meta_tensor_no_storage"),
    "complex128": (lambda: torch.ones(7, dtype=torch.complex128), "torch.complex128"),
    "conjugated": (lambda: torch.ones(3, dtype=torch.complex64).conj(), "a tensor to be conjugated or negated"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_tensors_that_cannot_be_read_are_counted_or_refused_by_name(kind: str) -> None:
    make, name = UNREADABLE[kind]
    other = make()
    data = saved({"model": {**WEIGHTS, "x": [other, other]}, "epoch": 3})
    _assert_weights(data, WEIGHTS)
    (row,) = read_pickled(MemoryFile(data)).omitted
    assert row.tensors == 2 and row.weights and row.parameters == (14 if kind == "complex128" else None)
    data = saved({"state_dict": WEIGHTS, "extra": {"a": other}})
    _assert_weights(data, WEIGHTS)
    assert read_pickled(MemoryFile(data)).omitted == (Omitted("extra", 1, 7 if kind == "complex128" else None, weights=False),)
    with pytest.raises(UnsupportedWeights) as caught:
        read_pickled(MemoryFile(saved({"x": other})))
    assert f'"{name}"' in str(caught.value)


def test_tensors_that_cannot_be_read_are_in_the_account(tmp_path: Path) -> None:
    torch.save({**WEIGHTS, "x": torch.eye(3).to_sparse()}, tmp_path / "pytorch_model.bin")
    with open_checkpoint(str(tmp_path), Access(local=True)) as checkpoint:
        account = read_coverage(checkpoint, checkpoint.tensors, checkpoint.tensors, ())
    assert (account.covered, account.whole) == (8, False)
    assert account.classes["undecoded"].tensors == 1 and [part.what for part in account.left_out] == ["x"]


@pytest.mark.parametrize("value", [Settings(), nn.Linear(2, 2), {"model": {"w": np.ones(3)}}, Numbers([1]), {"a": 3}, {}])
def test_files_without_tensors_that_can_be_read(value: Any) -> None:
    with pytest.raises(UnsupportedWeights, match="holds no state dict"):
        read_pickled(MemoryFile(saved(value)))


@pytest.mark.parametrize("name", ["scripted", "scripted_lists", "traced"])
def test_programs_of_torch_script(name: str) -> None:
    buffer = io.BytesIO()
    torch.jit.save(programs()[name], buffer, _extra_files={"config": "a" * 10_000})
    theirs = torch.jit.load(io.BytesIO(buffer.getvalue())).state_dict()  # type: ignore[no-untyped-call]
    file = MemoryFile(buffer.getvalue(), "model.pt")
    header = read_pickled(file)
    assert dict(contents(file, header)) == expected(theirs)  # attributes have no order
    hidden = [note.values for note in header.notes if note.code == "hidden"]
    assert hidden == [{"storages": 1, "bytes": 20}] * (name == "scripted_lists")
