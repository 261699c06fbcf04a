"""One damaged tensor in an otherwise faithful conversion: it is named, with what is wrong, and no other tensor is."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from analyzers.comparison.parents.report import FAITHFUL
from tests.layouts.architectures import State
from tests.layouts.damages import DAMAGES, Damage
from tests.layouts.pairs import DAMAGED, PAIRS, Pair, damaged_pairs, parents, sparsity, whole_name

WAYS = len(DAMAGES)


def chosen(number: int, ways: Sequence[int]) -> list[Damage]:
    """Damages of a pair, one of each of these ways."""
    return [DAMAGES[way][(number // 4) % len(DAMAGES[way])] for way in ways]


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


@damaged_pairs
def test_the_damaged_tensor_is_named_and_no_other(number: int, pair: Pair, tmp_path: Path) -> None:
    """In one of the eight ways, all of which are tried, before or after the conversion."""
    at = DAMAGED.index(pair) if pair in DAMAGED else number // 2
    is_named_alone(number, pair, (at % WAYS,), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("number", "pair"), list(enumerate(PAIRS)), ids=map(str, PAIRS))
def test_a_tensor_damaged_in_every_way(number: int, pair: Pair, tmp_path: Path) -> None:
    is_named_alone(number, pair, range(WAYS), tmp_path)


def is_named_alone(number: int, pair: Pair, ways: Sequence[int], tmp_path: Path) -> None:
    """The damaged tensor, and no other."""
    of, original = pair.original, pair.original.state
    relaid = pair.form(of, original)
    inside = pair.origins(to_original=False)
    for at, damage in enumerate(chosen(number, ways)):
        before = (number + at) % 2 == 0  # damaged before it was laid out anew, or after
        state = original if before else relaid
        every = victims(state, set(state) - pair.weights(state), damage.swaps)
        name, other = every[(7 * number + 3 * at) % len(every)]
        damaged = state | {name: damage.change(state[name], state[other])}
        after = pair.form(of, damaged) if before else damaged
        candidate, model = pair.write(tmp_path / str(at), original, after)
        report = parents(model, candidate, "exact")
        told = f"{damage.name} in {name}: {report.answer}"
        assert report.verdict not in ("same-weights", "quantized-copy"), told
        rows = [row for row in report.conversion if row.relation not in FAITHFUL]
        assert rows, told
        assert {whole_name(row.name) for row in rows} <= (inside[name] if before else {name}), f"{told} {rows}"
        for row in rows:
            # Parts, vectors, and rows that are no rows in the other layout may be no more than different.
            alone = (
                state[name].dim() > 1
                and pair.form.keeps_rows
                and after[whole_name(row.name)].shape == state[name].shape == original_shape(pair, row.name)
            )
            assert row.relation in (damage.relations if alone else (*damage.relations, *damage.parts)), f"{told} {row}"
        assert all((row.relation, row.exceptions) == ("equal", 0) for row in report.conversion if row not in rows), told
        old, new = (each.to(torch.bfloat16) for each in (state[name], damaged[name]))
        changed = (old != new) & ~(old.isnan() & new.isnan())
        assert sparsity(candidate, model, "exact").num_changed == int(changed.sum()), told


def original_shape(pair: Pair, name: str) -> torch.Size | None:
    """The shape of the tensor that a re-laid one comes from; None if there are several."""
    sources = pair.origins(to_original=True)[whole_name(name)]
    return pair.original.state[next(iter(sources))].shape if len(sources) == 1 else None
