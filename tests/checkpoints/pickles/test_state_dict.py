"""Which tensors of a trainer's checkpoint are the weights, and what they are called."""

from pathlib import Path
from typing import Any

import pytest
import torch

from analyzers.checkpoints import open_checkpoint
from analyzers.checkpoints.checkpoint_coverage import read_coverage
from analyzers.checkpoints.formats.pickles.torch_file import read_pickled
from analyzers.checkpoints.repository import Access
from analyzers.core.errors import InvalidCheckpoint
from tests.checkpoints.counting_file import MemoryFile
from tests.checkpoints.pickles.pickled_files import saved

A, B, ONE = torch.ones(3), torch.zeros(2, 2), torch.tensor(1.0)
OPTIMIZER = {"state": {0: {"exp_avg": B + 1}}, "param_groups": [{"lr": 0.1}]}


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ({"a": A, "b": B}, ["a", "b"]),
        ({"a": {"b": A, "c": {"d": B}}}, ["a.b", "a.c.d"]),
        ({"layers": [{"w": A}, {"w": B}]}, ["layers.0.w", "layers.1.w"]),
        ({0: {"w": A}, 1: {"w": B}}, ["0.w", "1.w"]),
        ({"model": {"a": A}}, ["a"]),
        ({"model": {"a": A}, "epoch": 3, "args": {"lr": 0.1}}, ["a"]),
        ({"model": {"a": A}, "optimizer": {"state": {0: {"step": ONE, "exp_avg": A}}}}, ["a"]),
        ({"state_dict": {"a": A}, "step": ONE, "loops": {"x": B}}, ["a"]),
        ({"model": {"language_model": {"embedding": {"w": A}}}, "rng_state": [B], "iteration": 7}, ["language_model.embedding.w"]),
        ({"state_dict": {"model": {"a": A}}}, ["a"]),
        ({"state_dict": {"model": {"a": A}, "head": {"b": B}}}, ["model.a", "head.b"]),
        ({"model": {"a": A}, "state_dict_ema": {"a": A}}, ["a"]),
        ({"model": {"a": A}, "discriminator": {"b": B}}, ["a"]),
        ({"encoder": {"a": A}, "decoder": {"b": B}, "optimizer": OPTIMIZER}, ["encoder.a", "decoder.b"]),
        (OPTIMIZER, ["state.0.exp_avg"]),
        ({"a": A, "logit_scale": ONE}, ["a", "logit_scale"]),
        ({"model": A, "b": B}, ["model", "b"]),
        (A, ["tensor"]),
        ([A, B], ["0", "1"]),
        ((A, [B, {"w": A}], {}), ["0", "1.0", "1.1.w"]),
        ({"layers": [[A], (B, [A])]}, ["layers.0.0", "layers.1.0", "layers.1.1.0"]),
        ({(0, "q"): A, None: A, True: B, 0.5: A, -1: B, "": B}, ["?", "None", "True", "0.5", "-1", ""]),
        ({"student": {"a": A}, "teacher": {"a": B}}, ["student.a", "teacher.a"]),
        ({"a": A, "b": None, "c": "text", "d": 1.5, "e": torch.Size([1]), "f": torch.float16, "g": torch.device("cpu")}, ["a"]),
    ],
)
def test_names(value: Any, names: list[str]) -> None:
    assert [tensor.name for tensor in read_pickled(MemoryFile(saved(value))).tensors] == names


def test_what_is_left_out_is_listed_and_not_counted(tmp_path: Path) -> None:
    value = {"model": {"a": A, "b": B}, "optimizer": {"m": A}, "ema": {"a": A + 1, "x": {"b": B + 1}}, "step": ONE}
    torch.save(value, tmp_path / "pytorch_model.bin")
    with open_checkpoint(str(tmp_path), Access(local=True)) as checkpoint:
        account = read_coverage(checkpoint, checkpoint.tensors, checkpoint.tensors, ())
        assert [(note.code, note.values) for note in checkpoint.notes] == [("nested", {"key": "model"})]
        assert [tensor.name for tensor in checkpoint.tensors] == ["a", "b"]
    assert [part.model_dump() for part in account.left_out] == [  # the optimizer holds a tensor of the weights
        {"what": "ema", "tensors": 2, "parameters": 7, "code": "beside"},
        {"what": "step", "tensors": 1, "parameters": 1, "code": "beside"},
    ]
    assert account.whole and account.parameters == 7


def test_names_that_meet_are_refused() -> None:
    for value in ({"a.b": A, "a": {"b": B}}, {1: A, "1": B}):
        with pytest.raises(InvalidCheckpoint, match="two of its tensors are called"):
            read_pickled(MemoryFile(saved(value)))


def test_the_same_state_dict_under_two_keys_is_read_once() -> None:
    state = {"a": A, "b": B}
    header = read_pickled(MemoryFile(saved({"model": state, "state_dict": state})))
    assert len(header.tensors) == 2 and header.omitted == ()
