"""What stands next to the weights is not interpreted, and the weights are what torch.load reads."""

import argparse
import collections
import datetime
import enum
import io
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from analyzers.checkpoints import open_checkpoint
from analyzers.checkpoints.checkpoint_coverage import read_coverage
from analyzers.checkpoints.formats.pickles import read_pickled
from analyzers.checkpoints.formats.safetensors_header import Omitted
from analyzers.checkpoints.repository import Access
from analyzers.core.errors import UnsupportedWeights
from analyzers.core.notes import Value
from tests.cases import few
from tests.checkpoints.counting_file import MemoryFile
from tests.checkpoints.pickles.pickled_files import contents, expected, loaded, saved

LAYOUTS = [pytest.param(True, id="zip"), pytest.param(False, id="legacy")]
WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2)}


class Color(enum.Enum):
    RED = "red"


class Bits(enum.Flag):
    LOW = 1
    HIGH = 2


@dataclass
class Settings:
    rate: float = 0.1
    names: list[str] = field(default_factory=lambda: ["a", "b"])
    nested: Any = None
    scale: torch.Tensor | None = None


@dataclass(slots=True)
class Slotted:
    rate: float = 0.1


class Range(NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


class Named(collections.OrderedDict[str, Any]):
    """A state dict of its own class."""


class Attributes(dict[str, Any]):
    __getattr__ = dict.__getitem__


class Numbers(list[int]):
    pass


class Letters(set[str]):
    pass


class Average:
    """An average of weights that is no module."""

    def __init__(self) -> None:
        self.decay, self.shadow = 0.99, {"a.weight": torch.zeros(2, 3)}


def _function() -> None:
    pass


def _optimizer() -> dict[str, Any]:
    model = torch.nn.Linear(3, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


BESIDE: dict[str, Any] = {
    "namespace": argparse.Namespace(lr=0.1, device=torch.device("cpu"), path=pathlib.PurePosixPath("/a"), nothing=None),
    "dataclass": Settings(nested={"deep": [Settings()]}),
    "dataclass_with_a_tensor": Settings(scale=torch.ones(7)),
    "slots": Slotted(),
    "enum": Color.RED,
    "flag": Bits.LOW | Bits.HIGH,
    "enum_as_key": {Color.RED: 1, (1, 2): 3, None: 4, 0.5: 6},
    "scalars": [np.float64(0.5), np.float32(0.5), np.int64(3), np.bool_(True)],
    "array": np.arange(12, dtype=np.float32).reshape(3, 4),
    "long_array": np.zeros(100_000),
    "texts": np.array(["a", "bc"]),
    "objects": np.array([{"a": 1}, None], dtype=object),
    "records": np.zeros(3, dtype=[("x", "f4"), ("y", "i8")]),
    "dtype": np.dtype("f4"),
    "generator": np.random.default_rng(0),
    "old_generator": np.random.RandomState(0).get_state(),
    "date": [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), datetime.date(2026, 1, 1), datetime.timedelta(1)],
    "path": pathlib.PurePosixPath("/tmp/x"),
    "defaultdict": collections.defaultdict(list, {"a": [1]}),
    "counter": collections.Counter("abc"),
    "deque": collections.deque([1, 2, 3], maxlen=5),
    "list_subclass": Numbers([1, 2]),
    "set_subclass": Letters("ab"),
    "frozenset": frozenset({"a", "b"}),
    "named_tuple_with_tensors": Range(torch.zeros(1), torch.ones(1)),
    "function": _function,
    "class": torch.nn.Linear,
    "bound": Settings().__eq__,
    "complex": [1j, bytearray(b"ab"), b"\0" * 300, slice(1, 2), range(3), 1 << 80, -1],
    "bytes_io": io.BytesIO(b"extra"),
    "average": Average(),
    "torch_things": [torch.Size([1]), torch.float16, torch.device("cpu")],
    "exception": ValueError("a"),
}  # fmt: skip


def _assert_weights(data: bytes, weights: dict[str, torch.Tensor]) -> tuple[tuple[str, ...], dict[str, Mapping[str, Value]]]:
    """Compare the tensors with ``weights``, which torch has loaded. Returns the opaque names and the values of the notes."""
    file = MemoryFile(data, "model.pt")
    header = read_pickled(file)
    ours = dict(contents(file, header))
    assert list(ours) == list(weights)
    assert ours == expected(weights)
    return header.opaque, {note.code: note.values for note in header.notes}


# Each with one protocol and layout of the eight, in turn; all with all in the exhaustive suite.
@pytest.mark.parametrize(
    ("beside", "protocol", "zipped"), few(product(BESIDE, (2, 3, 4, 5), (True, False)), {8 * at + at % 8 for at in range(len(BESIDE))})
)
def test_weights_next_to_anything(beside: str, protocol: int, zipped: bool) -> None:
    data = saved({"state_dict": WEIGHTS, "thing": BESIDE[beside], "epoch": 3}, zipped=zipped, protocol=protocol)
    opaque, notes = _assert_weights(data, loaded(data, weights_only=False)["state_dict"])
    assert opaque == notes.get("opaque", {"classes": ()})["classes"]


@pytest.mark.parametrize("protocol", [1, 2, 4, 5])
def test_weights_next_to_everything_at_once(protocol: int) -> None:
    names = BESIDE if protocol > 1 else ("namespace", "dataclass", "enum", "array", "scalars", "date", "list_subclass", "set_subclass")
    data = saved({**{name: BESIDE[name] for name in names}, "state_dict": WEIGHTS, "optimizer": _optimizer()}, protocol=protocol)
    opaque, _ = _assert_weights(data, loaded(data, weights_only=False)["state_dict"])
    assert {"argparse.Namespace", f"{__name__}.Settings", f"{__name__}.Color"} <= set(opaque)
    flat = saved({**WEIGHTS, "args": BESIDE["namespace"], "date": BESIDE["date"], "best": np.float32(1)}, protocol=protocol)
    _assert_weights(flat, WEIGHTS)


@pytest.mark.parametrize("protocol", [2, 4])
def test_numpy_of_other_generations(protocol: int) -> None:
    """The old layout, whose pickles have no length or checksum, with the names that numpy 1 gave its functions."""
    data = saved({"model": WEIGHTS, "stats": [np.arange(3.0), np.float64(2)]}, zipped=False, protocol=2)
    for old in (b"numpy.core.multiarray", b"numpy._core.multiarray"):
        renamed = data.replace(b"numpy._core.multiarray", old)
        opaque, _ = _assert_weights(renamed, WEIGHTS)
        assert old.decode() + "._reconstruct" in opaque


def test_what_stayed_opaque_is_named() -> None:
    header = read_pickled(MemoryFile(saved({"model": WEIGHTS, "run": argparse.Namespace(lr=1), "stats": Settings(scale=torch.ones(4))})))
    assert header.opaque == ("argparse.Namespace", f"{__name__}.Settings")
    assert [(note.code, note.values) for note in header.notes[1:]] == [
        ("opaque", {"values": 2, "classes": header.opaque}),
        ("hidden", {"storages": 1, "bytes": 16}),
    ]
    assert read_pickled(MemoryFile(saved(WEIGHTS))).opaque == ()


@pytest.mark.parametrize("protocol", [2, 4])
def test_state_dicts_of_another_class(protocol: int) -> None:
    for kind in (Named, Attributes, collections.OrderedDict, lambda items: collections.defaultdict(list, items)):
        for value in (kind(WEIGHTS), {"model": kind(WEIGHTS), "epoch": 1}, kind({"state_dict": WEIGHTS, "args": Settings()})):
            data = saved(value, protocol=protocol)
            theirs = loaded(data, weights_only=False)
            _assert_weights(data, theirs.get("model", theirs.get("state_dict", theirs)))
    assert _assert_weights(saved(Named(WEIGHTS), protocol=protocol), WEIGHTS) == ((), {})


def test_only_averages() -> None:
    _, notes = _assert_weights(saved({"ema": WEIGHTS, "optimizer": _optimizer(), "epoch": 1}), WEIGHTS)
    assert notes["nested"] == {"key": "ema"}


def test_keys_that_are_not_text_are_written_as_text() -> None:
    value = {"model": WEIGHTS, "extra": {(1, 2): torch.ones(2), Color.RED: {"a": torch.ones(1)}}}
    header = read_pickled(MemoryFile(saved(value)))
    names = ["model.a.weight", "model.a.bias", "extra.(1, 2)", f"extra.<{__name__}.Color>.a"]
    assert [tensor.name for tensor in header.tensors] == names


class _Doubled(torch.Tensor):
    """A subclass of torch.Tensor with the same bytes."""


def test_plain_tensors_of_another_class_are_read() -> None:
    data = saved({"w": torch.arange(4.0).as_subclass(_Doubled)})
    opaque, _ = _assert_weights(data, {"w": torch.arange(4.0)})
    assert opaque == (f"{__name__}._Doubled",)


def test_sparse_tensors_with_attributes_are_refused_by_name() -> None:
    sparse = torch.eye(3).to_sparse()
    sparse.note = "an attribute"  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedWeights, match="_rebuild_sparse_tensor"):
        read_pickled(MemoryFile(saved({"w": sparse})))
    _assert_weights(saved({"model": WEIGHTS, "optimizer": {"a": sparse}}), WEIGHTS)


@pytest.mark.parametrize("value", [Settings(), argparse.Namespace(model=WEIGHTS), {"model": {"w": np.ones(3)}}, Numbers([1])])
def test_files_without_tensors_that_can_be_read(value: Any) -> None:
    with pytest.raises(UnsupportedWeights):
        read_pickled(MemoryFile(saved(value)))


def test_weights_built_by_something_unknown_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedWeights, match=r"holds a tensor built by \"torch\._utils\._rebuild_device_tensor_from_numpy\""):
        _refused("_rebuild_device_tensor_from_numpy")
    for beside in ("optimizer", "extra"):
        data = saved({"state_dict": WEIGHTS, beside: {"a": torch.ones(3).to_sparse()}})
        _assert_weights(data, WEIGHTS)
        assert read_pickled(MemoryFile(data)).omitted == (Omitted(beside, 1, None, weights=False),)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("zipped", LAYOUTS)
def test_plain_tensors_next_to_others_are_read(zipped: bool, tmp_path: Path) -> None:
    others = {
        "built by": torch.eye(3).to_sparse(),
        "built by (": torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8),
        "built by ((": torch.empty(2, 5, device="meta"),
        "of dtype complex128": torch.ones(7, dtype=torch.complex128),
        "to be conjugated": torch.ones(3, dtype=torch.complex64).conj(),
        "built by (((": torch.nn.Parameter(torch.empty(8, device="meta")),
        "built by ((((": Range(torch.ones(2), torch.ones(3)),
    }
    if zipped:
        others["built by ((((("] = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for why, other in others.items():
        for value in ({**WEIGHTS, "x": other, "y": [other]}, {"model": {**WEIGHTS, "x": [other, other]}, "epoch": 3}):
            data = saved(value, zipped=zipped)
            _assert_weights(data, WEIGHTS)
            (row,) = read_pickled(MemoryFile(data)).omitted
            assert row.tensors == 2 and row.weights
            with pytest.raises(UnsupportedWeights, match=f"holds a tensor {why.rstrip(' (')}"):
                read_pickled(MemoryFile(saved({"x": other}, zipped=zipped)))
    torch.save({**WEIGHTS, "x": torch.eye(3).to_sparse()}, tmp_path / "pytorch_model.bin")
    with open_checkpoint(str(tmp_path), Access(local=True)) as checkpoint:
        account = read_coverage(checkpoint, checkpoint.tensors, checkpoint.tensors, ())
    assert (account.covered, account.whole) == (8, False)
    assert account.classes["undecoded"].tensors == 1 and [part.what for part in account.left_out] == ["x"]


def _refused(name: str) -> None:
    from tests.attacks.pickles import called, mapping, named, number, pickled, text, zipped

    storage = b"(" + text("storage") + named("torch", "FloatStorage") + text("0") + text("cpu") + number(4) + b"tQ"
    read_pickled(MemoryFile(zipped(pickled(mapping(w=called(named("torch._utils", name), storage))))))
