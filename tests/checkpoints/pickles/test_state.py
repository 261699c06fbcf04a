"""Which tensors of a trainer's checkpoint are the weights, and what they are called."""

from typing import Any

import pytest
import torch

from analyzers.checkpoints.pickles import read_pickled
from analyzers.errors import InvalidCheckpoint
from tests.checkpoints.memory import MemoryFile
from tests.checkpoints.pickles.files import saved

A, B, ONE = torch.ones(3), torch.zeros(2, 2), torch.tensor(1.0)


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
        ({"model": {"a": A}, "discriminator": {"b": B}}, ["model.a", "discriminator.b"]),
        ({"encoder": {"a": A}, "decoder": {"b": B}, "optimizer": {"c": B}}, ["encoder.a", "decoder.b"]),
        ({"a": A, "logit_scale": ONE}, ["a", "logit_scale"]),
        ({"model": A, "b": B}, ["model", "b"]),
        ({"epoch": 3}, []),
        ({}, []),
        ({"a": A, "b": None, "c": "text", "d": 1.5, "e": torch.Size([1]), "f": torch.float16, "g": torch.device("cpu")}, ["a"]),
    ],
)
def test_names(value: Any, names: list[str]) -> None:
    for zipped in (True, False):
        assert [tensor.name for tensor in read_pickled(MemoryFile(saved(value, zipped=zipped))).tensors] == names


def test_what_is_left_out_is_noted() -> None:
    value = {"model": {"a": A}, "optimizer": {"m": A}, "ema": {"a": B}, "step": ONE, "scaler": {"s": ONE}}
    (note,) = read_pickled(MemoryFile(saved(value))).notes
    assert note == 'Weights were read from "model" of a pickled file; left out: "optimizer", "ema", "step" and 1 more.'
    (note,) = read_pickled(MemoryFile(saved({"encoder": {"a": A}, "decoder": {"b": B}, "optimizer": {"c": B}}))).notes
    assert note == 'Left out of a pickled file: "optimizer".'
    assert read_pickled(MemoryFile(saved({"a": A}))).notes == ()


def test_names_that_meet_when_joined_are_refused() -> None:
    with pytest.raises(InvalidCheckpoint, match="two tensors have the name"):
        read_pickled(MemoryFile(saved({"a.b": A, "a": {"b": B}})))
