"""Values that only moved: every one is compared with itself, and each tensor with those it came from."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from analyzers.checkpoints import Access, Checkpoint, Chunk, Matching, Span, open_checkpoint, stream, whole_spans
from analyzers.numerics.conversions import values_of
from tests.cases import few
from tests.layouts.pairs import PAIRS, SOME, Pair, every_pair, parents, sparsity


def differing(span: Span, chunks: Iterator[Chunk]) -> int:
    """Count the values of a span that differ between the sides, in fp64."""
    dtypes = [tensor.counted_as for tensor in span.sides if tensor is not None]
    sides = ([values_of(np.asarray(codes), dtype) for codes, dtype in zip(chunk.sides, dtypes, strict=True)] for chunk in chunks)
    return sum(int(np.count_nonzero(one != other)) for one, other in sides)


def opened(pair: Pair, folder: Path) -> tuple[list[Checkpoint], list[dict[str, torch.Tensor]]]:
    """The checkpoint as saved and the converted one, and their states."""
    original = pair.original.state
    states = [original, pair.form(pair.original, original)]
    return [open_checkpoint(str(path), Access(local=True)) for path in pair.write(folder, *states)], states


@every_pair
def test_every_value_is_compared_with_itself(pair: Pair, tmp_path: Path) -> None:
    sides, states = opened(pair, tmp_path)
    for first in (0, 1):
        base, tuned = sides[first], sides[1 - first]
        alignment = Matching(None, None).align([base, tuned], ["base", "tuned"], whole=True)
        (unmatched,) = alignment.unmatched
        assert not (unmatched.missing or unmatched.extra or unmatched.misshapen or unmatched.integers or unmatched.layers)
        assert sum(group.base.elements for group in alignment.groups) == pair.parameters
        steps = stream([base, tuned], whole_spans(alignment.sides), differing)
        assert sum(step.result for step in steps if step.result is not None) == 0
        origins = pair.origins(to_original=first == 1)
        found: dict[str, set[str]] = {}
        for group in alignment.groups:
            ours, theirs = group.stored
            found.setdefault(ours, set()).add(theirs)
            moved = not torch.equal(states[first][ours].flatten(), states[1 - first][theirs].flatten())
            assert (group.forms != ("",)) >= moved, group
        assert pair.weights(states[first]) <= found.keys() <= states[first].keys()
        for name in pair.weights(states[first]):
            copied = any(map(pair.is_copy, origins[name]))
            assert found[name] == origins[name] or (copied and found[name] < origins[name]), name


@pytest.mark.parametrize("pair", few(PAIRS, {PAIRS.index(pair) for pair in SOME[1::8]}, list(map(str, PAIRS))))
@pytest.mark.parametrize("mode", ["quick", "exact"])
def test_the_commands_find_nothing_changed(mode: str, pair: Pair, tmp_path: Path) -> None:
    original = pair.original.state
    base, tuned = pair.write(tmp_path, original, pair.form(pair.original, original))
    change, family = sparsity(base, tuned, mode), parents(base, tuned, mode)
    assert (change.num_changed, change.values_compared, change.total_parameters) == (0, pair.parameters, pair.parameters)
    assert family.verdict == "same-weights" and all(row.relation == "equal" for row in family.conversion)
    for coverage in (*change.coverage, *family.coverage):
        assert coverage.whole and coverage.covered == coverage.weights == pair.parameters and not coverage.suffix()
