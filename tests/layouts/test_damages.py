"""One damaged tensor in an otherwise faithful conversion: it is named, with what is wrong, and no other tensor is."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from analyzers.comparison.parents.report import FAITHFUL, Relation
from tests.cases import few
from tests.layouts.architectures import State, values
from tests.layouts.pairs import SOME, Pair, parents, sparsity, whole_name


@dataclass(frozen=True, slots=True)
class Damage:
    """A damage. change: makes the damaged tensor from the tensor and another one of its shape. relations: those that describe the tensor;
    parts: those that may describe parts of it, or the tensor as a part of another.
    """

    name: str
    change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    relations: tuple[Relation, ...]
    parts: tuple[Relation, ...] = ("changed", "other", "reordered")
    swaps: bool = False


def _noise_after_half(tensor: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    noise = values(f"noise for {tuple(tensor.shape)}", tuple(tensor.shape), tensor.dtype, seed=1)
    rows = tensor.shape[0] // 2
    return torch.cat([tensor[:rows], noise[rows:]])


def _not_a_number(tensor: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    result = tensor.clone()
    result[tensor.shape[0] // 2] = torch.nan
    return result


DAMAGES = (
    Damage("zeros", lambda tensor, _: torch.zeros_like(tensor), ("zero",)),
    Damage("one value", lambda tensor, _: torch.full_like(tensor, 0.0199), ("constant",)),
    Damage("noise after half of the rows", _noise_after_half, ("truncated",)),
    Damage("another tensor's values", lambda _, other: other.clone(), ("other",), swaps=True),
    Damage("1.37 times each value", lambda tensor, _: (tensor.float() * 1.37).to(tensor.dtype), ("affine",)),
    Damage("a row of NaN", _not_a_number, ("non-finite",)),
    Damage("rows in another order", lambda tensor, _: tensor.roll(tensor.shape[0] // 2 + 1, 0), ("reordered",)),
)
# Each damage of one pair, and all of all pairs in the exhaustive suite.
CASES = [(damage, pair) for damage in DAMAGES for pair in SOME]
CHOSEN = {at * len(SOME) + (3 * at + 1) % len(SOME) for at in range(len(DAMAGES))}


def victims(state: State, copies: set[str], swaps: bool) -> list[tuple[str, str]]:
    """Tensors that can be damaged, three quarters of them matrices. swaps: each with the same tensor of another layer or expert."""
    names = [name for name, tensor in state.items() if name not in copies and tensor.dim() and tensor.numel() >= 32 and len(tensor) > 2]
    if swaps:
        found = [(name, other) for name in names if (other := _counterpart(name, names)) and state[other].shape == state[name].shape]
    else:
        found = [(name, name) for name in names]
    matrices = [each for each in found if state[each[0]].dim() > 1]
    vectors = [each for each in found if state[each[0]].dim() == 1]
    return matrices + vectors[: len(matrices) // 3]


def _counterpart(name: str, names: list[str]) -> str:
    """The last other name that differs in numbers only, or none."""
    return next((other for other in names[::-1] if other != name and re.sub(r"\d", "", other) == re.sub(r"\d", "", name)), "")


@pytest.mark.parametrize(("damage", "pair"), few(CASES, CHOSEN, [f"{damage.name} in {pair}" for damage, pair in CASES]))
def test_the_damaged_tensor_is_named_and_no_other(damage: Damage, pair: Pair, tmp_path: Path) -> None:
    of, original, number = pair.original, pair.original.state, CASES.index((damage, pair))
    relaid, before = pair.form(of, original), number % 2 == 0  # damaged before it was laid out anew, or after
    state = original if before else relaid
    every = victims(state, set(state) - pair.weights(state), damage.swaps)
    name, other = every[7 * number % len(every)]
    damaged = state | {name: damage.change(state[name], state[other])}
    after = pair.form(of, damaged) if before else damaged
    candidate, model = pair.write(tmp_path, original, after)
    report = parents(model, candidate, "exact")
    assert report.verdict not in ("same-weights", "quantized-copy"), report.answer
    rows = [row for row in report.conversion if row.relation not in FAITHFUL]
    assert rows and {whole_name(row.name) for row in rows} <= (pair.origins(to_original=False)[name] if before else {name}), rows
    for row in rows:
        # Parts, vectors, and rows that the other layout does not hold as rows may be said to differ, and no more.
        in_rows = state[name].dim() > 1 and pair.form.keeps_rows
        alone = in_rows and after[whole_name(row.name)].shape == state[name].shape == original_shape(pair, row.name)
        assert row.relation in (damage.relations if alone else (*damage.relations, *damage.parts)), row
    assert all((row.relation, row.exceptions) == ("equal", 0) for row in report.conversion if row not in rows)
    old, new = (each.to(torch.bfloat16) for each in (state[name], damaged[name]))
    changed = (old != new) & ~(old.isnan() & new.isnan())
    assert sparsity(candidate, model, "exact").num_changed == int(changed.sum())


def original_shape(pair: Pair, name: str) -> torch.Size | None:
    """The shape of the tensor that a re-laid one comes from; None if there are several."""
    sources = pair.origins(to_original=True)[whole_name(name)]
    return pair.original.state[next(iter(sources))].shape if len(sources) == 1 else None
