"""Layers that were dropped, repeated, or taken from two models, also where the rest of the layout changed as well."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch

from analyzers.comparison.parents import ParentsReport
from analyzers.core.coverage import Coverage
from tests.cases import few
from tests.layouts.architectures import KEY_HEADS, State, architecture, llama
from tests.layouts.file_formats import write, write_pickle, write_sharded
from tests.layouts.pairs import parents, sparsity
from tests.layouts.relayouts import fuse_gate_up, fuse_qkv, layer_of, renamed, transpose_linear, with_layers
from tests.parents.checkpoints import asked

MODES = ("quick", "exact")
Change = Callable[[State], State]


def as_it_is(state: State) -> State:
    return state


def fused(state: State) -> State:
    return fuse_gate_up(fuse_qkv(state, "blocks", KEY_HEADS))


def by_group(state: State) -> State:
    return renamed(fuse_qkv(state, "groups", KEY_HEADS), ((r"^", "module."),))


CHANGES: tuple[Change, ...] = (as_it_is, fused, by_group, transpose_linear)


def elements(state: State, layers: set[int] | None = None) -> int:
    """Elements of all tensors, or of those in these layers."""
    return sum(tensor.numel() for name, tensor in state.items() if layers is None or layer_of(name) in layers)


def tuned(state: State, seed: int = 1) -> State:
    """About a third of the values moved."""
    random = torch.Generator().manual_seed(seed)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        step = torch.randn(tensor.shape, generator=random) * (torch.rand(tensor.shape, generator=random) < 1 / 3)
        return (tensor.float() + 4e-4 * step).to(tensor.dtype)

    return {name: moved(tensor) for name, tensor in state.items()}


def stack(outside: State, *layers: tuple[State, int]) -> State:
    """Layer by layer a layer of some model, and what is outside the layers of one."""
    result = {name: tensor for name, tensor in outside.items() if layer_of(name) is None}
    for new, (state, old) in enumerate(layers):
        inside = {name: tensor for name, tensor in state.items() if layer_of(name) == old}
        result |= {name.replace(f".{old}.", f".{new}.", 1): tensor for name, tensor in inside.items()}
    return result


def sources(report: ParentsReport) -> dict[int | None, tuple[str, int | None]]:
    """Layer of the model -> the candidate and its layer."""
    return {row.layer: (row.ref, row.source) for row in report.layer_map}


def moved(report: ParentsReport, layers: int) -> dict[int, int | None]:
    """Layer of the model -> layer of the only candidate; those that the map leaves out have the same number."""
    found = sources(report)
    return {layer: found[layer][1] if layer in found else layer for layer in range(layers)}


def names_the_layers(coverage: Coverage, *layers: int) -> bool:
    """Whether what was left out is said to be these layers."""
    return all(any(str(layer) in left.what for left in coverage.left_out) for layer in layers)


@pytest.mark.parametrize(("change", "mode"), few(product(CHANGES, MODES), {0, 5}))
def test_dropped_layers(change: Change, mode: str, tmp_path: Path) -> None:
    base = llama(6)
    pruned = change(with_layers(base, (0, 1, 4, 5)))
    one = write(tmp_path / "base", base, architecture("llama").config | {"num_hidden_layers": 6})
    other = write_sharded(tmp_path / "pruned", pruned, architecture("llama").config | {"num_hidden_layers": 4})
    report = sparsity(one, other, mode)
    of_base, of_pruned = report.coverage
    assert (report.num_changed, report.values_compared) == (0, elements(pruned))
    assert of_pruned.whole and of_pruned.covered == elements(pruned)
    assert not of_base.whole and of_base.covered == elements(base) - elements(base, {2, 3})
    assert sum(left.parameters or 0 for left in of_base.left_out) == elements(base, {2, 3})
    assert names_the_layers(of_base, 2, 3) and {left.code for left in of_base.left_out} == {"layers"}
    family = parents(other, one, mode)
    assert family.verdict in ("derived", "stack")
    assert moved(family, 4) == {0: 0, 1: 1, 2: 4, 3: 5}
    assert all(row.relation == "equal" for row in family.conversion)
    assert family.coverage[0].whole and not family.coverage[1].whole


@pytest.mark.parametrize(("change", "mode"), few(product(CHANGES, MODES), {1, 6}))
def test_repeated_layers(change: Change, mode: str, tmp_path: Path) -> None:
    numbers = (0, 1, 2, 1, 2, 3)
    upscaled = {name: tensor.clone() for name, tensor in change(with_layers(llama(4), numbers)).items()}  # each layer in memory of its own
    config = architecture("llama").config
    one = write(tmp_path / "base", llama(4), config | {"num_hidden_layers": 4})
    other = write_pickle(tmp_path / "upscaled", upscaled, config | {"num_hidden_layers": 6})
    family = parents(other, one, mode)
    assert sparsity(one, other, mode).num_changed == 0 and family.verdict in ("derived", "stack")
    assert moved(family, len(numbers)) == dict(enumerate(numbers))
    assert all(coverage.whole for coverage in family.coverage) and all(row.relation == "equal" for row in family.conversion)


@pytest.mark.parametrize("change", few(CHANGES, {2}))
def test_a_stack_of_siblings(change: Change, tmp_path: Path) -> None:
    base = llama(6)
    sibling = tuned(base)
    stacked = change(stack(base, *((base, layer) for layer in (0, 1, 2)), *((sibling, layer) for layer in (3, 4, 5))))
    one, other = (write(tmp_path / name, state, architecture("llama").config) for name, state in (("base", base), ("sibling", sibling)))
    model = write(tmp_path / "stacked", stacked, architecture("llama").config)
    for candidates in ((one, other), (other, one)):
        report = asked(str(model), *map(str, candidates), mode="exact")
        assert report.verdict == "stack", report.answer
        refs = {each.ref for each in report.candidates}
        of_base, of_sibling = (next(ref for ref in refs if ref.endswith(path.name)) for path in (one, other))
        expected = {layer: (of_base if layer < 3 else of_sibling, layer) for layer in range(6)}
        assert {layer: found for layer, found in sources(report).items() if layer is not None} == expected
        assert all(row.equal_share == 1 for row in report.layer_map)
        assert set(report.parents) == refs
        assert report.coverage[0].whole


def test_a_stack_of_strangers_in_another_order(tmp_path: Path) -> None:
    base, stranger = llama(4), llama(4, seed=7)
    layers = [(base, 0), (stranger, 3), (base, 2), (stranger, 1)]
    one, other = (write(tmp_path / name, state, architecture("llama").config) for name, state in (("base", base), ("stranger", stranger)))
    model = write(tmp_path / "stacked", stack(base, *layers), architecture("llama").config)
    report = asked(str(model), str(one), str(other), mode="exact")
    assert report.verdict == "stack"
    found = {layer: (Path(ref).name, source) for layer, (ref, source) in sources(report).items() if layer is not None}
    assert found == {0: ("base", 0), 1: ("stranger", 3), 2: ("base", 2), 3: ("stranger", 1)}


def test_dropped_blocks_of_an_encoder_and_decoder(tmp_path: Path) -> None:
    """Layer numbers count from 0 in both."""
    of = architecture("t5")
    pruned = {name: tensor for name, tensor in of.state.items() if not name.startswith("decoder.block.2.")}
    one, other = write(tmp_path / "base", of.state, of.config), write(tmp_path / "pruned", pruned, of.config | {"num_decoder_layers": 2})
    report = sparsity(one, other, "exact")
    assert report.num_changed == 0 and report.coverage[1].whole
    assert report.coverage[0].covered == elements(pruned)


def test_layers_of_other_heads_are_not_taken_for_dropped_ones(tmp_path: Path) -> None:
    """The same names and shapes with other values: no layer is found, and nothing is said to be equal."""
    one, other = write(tmp_path / "base", llama(4)), write(tmp_path / "other", with_layers(llama(4, seed=9), (0, 3)))
    report = parents(other, one, "exact")
    assert report.verdict in ("unrelated", "undecided") and not report.layer_map
    assert not any(row.relation == "equal" for row in report.conversion)
