"""Layouts that fit in two ways, or not at all, and configurations that lie: bounded work, no crash, and no claim beyond the bits."""

import json
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from analyzers.comparison.parents.report import FAITHFUL
from analyzers.core.errors import MantissaError
from tests.cases import few
from tests.layouts.architectures import BF16, HEADS, KEY_HEADS, WIDTH, State, architecture, llama, values
from tests.layouts.file_formats import write, write_pickle
from tests.layouts.pairs import parents, rows_by_name, sparsity
from tests.layouts.relayouts import fuse_gate_up, fuse_qkv, stack_experts, transpose_linear
from tests.sparsity.oracle_comparison import compare

CONFIG = architecture("llama").config
ATTENTION = "model.layers.0.self_attn."


def elements(state: State) -> int:
    return sum(tensor.numel() for tensor in state.values())


def unchanged(folder: Path, base: State, tuned: State, config: Mapping[str, Any], tuned_config: Mapping[str, Any] | None = None) -> None:
    """Nothing is said to differ, in either direction and mode, and everything was compared."""
    one = write(folder / "base", base, config)
    other = write(folder / "tuned", tuned, config if tuned_config is None else tuned_config)
    for first, second in ((one, other), (other, one)):
        for mode in ("quick", "exact"):
            report = sparsity(first, second, mode)
            assert (report.num_changed, report.values_compared) == (0, elements(base))
            assert all(coverage.whole for coverage in report.coverage)
        family = parents(second, first, "exact")
        assert family.verdict == "same-weights", family.answer
        assert all(row.relation == "equal" for row in family.conversion)


# Values under which more than one form fits.


@pytest.mark.parametrize(("order", "value"), few(product(["blocks", "heads", "groups"], [0.0, 0.02]), {5}))
def test_constant_weights_fit_in_every_order(value: float, order: Any, tmp_path: Path) -> None:
    """Query, key and value of one size and one value: whichever order is taken, they are equal."""
    of = architecture("opt")
    state = {name: torch.full_like(tensor, value) if "self_attn." in name else tensor for name, tensor in of.state.items()}
    unchanged(tmp_path, state, fuse_qkv(state, order, HEADS), of.config)


def _symmetric() -> tuple[State, State, Any]:
    state = {name: (tensor + tensor.T) / 2 if tensor.shape == (WIDTH, WIDTH) else tensor for name, tensor in llama().items()}
    return state, transpose_linear(state), CONFIG


def _equal_experts() -> tuple[State, State, Any]:
    """As many models begin: all experts are copies of one."""
    of = architecture("qwen3_moe")
    state = {name: of.state["".join([before, ".experts.0.", after[2:]])] if after else tensor
             for name, tensor in of.state.items() for before, _, after in [name.partition(".experts.")]}  # fmt: skip
    return state, stack_experts(state, "blocks", inputs_first=False), of.config


def _cubes() -> tuple[State, State, Any]:
    """As many experts as inputs and outputs: the shape says nothing about the order of the axes."""
    size = 16
    names = [f"model.layers.0.mlp.experts.{expert}.{part}_proj.weight" for expert in range(size) for part in ("gate", "up", "down")]
    state = {name: values(name, (size, size), BF16) for name in names}
    state["model.embed_tokens.weight"] = values("embedding", (40, size), BF16)
    return state, stack_experts(state, "separate", inputs_first=True), CONFIG


def _layers_alike() -> tuple[State, State, Any]:
    """All layers hold the same values: none was moved."""
    first = {name: tensor for name, tensor in llama().items() if ".layers.0." in name}
    state = {name: tensor for name, tensor in llama().items() if ".layers." not in name}
    state |= {name.replace(".0.", f".{layer}."): tensor.clone() for layer in range(4) for name, tensor in first.items()}
    return state, fuse_qkv(state, "blocks", KEY_HEADS), CONFIG


def _tied_other_way() -> tuple[State, State, Any]:
    """Each side has the other of two tied matrices."""
    of = architecture("qwen2")
    return of.state, {"lm_head.weight" if name == of.embedding else name: tensor for name, tensor in of.state.items()}, of.config


@pytest.mark.parametrize("build", [_symmetric, _equal_experts, _cubes, _layers_alike, _tied_other_way])
def test_several_forms_fit(build: Callable[[], tuple[State, State, Any]], tmp_path: Path) -> None:
    unchanged(tmp_path, *build())


def test_where_no_form_fits_it_is_said(tmp_path: Path) -> None:
    """A fused qkv of other values: shapes propose forms, the bits agree with none, and nothing is called equal."""
    fused = fuse_qkv(llama(), "blocks", KEY_HEADS)
    other = {name: values(f"other {name}", tuple(tensor.shape), BF16) if "qkv_proj" in name else tensor for name, tensor in fused.items()}
    one, model = write(tmp_path / "base", llama(), CONFIG), write(tmp_path / "model", other, CONFIG)
    report = parents(model, one, "exact")
    assert report.verdict not in ("same-weights", "quantized-copy")
    wrong = {name for name, rows in rows_by_name(report).items() if any(row.relation not in FAITHFUL for row in rows)}
    assert wrong == {name for name in fused if "qkv_proj" in name}


# Configurations that lie, and odd checkpoints.


def crossed(firsts: Sequence[Any], seconds: Sequence[Any]) -> list[Any]:
    """All pairs as parameters of a test: some of ``seconds`` with one of ``firsts`` in turn, and the others exhaustive."""
    pairs = list(product(firsts, seconds))
    kept = {number % len(firsts) * len(seconds) + number for number in range(0, len(seconds), 4 if len(firsts) % 2 else 3)}
    return few(pairs, kept, [f"{first}-{second}" for first, second in pairs])


_HEADS: list[tuple[Any, Any, Any]] = [
    (0, 0, 0), (-4, -2, -8), (7, 3, 5), (10**18, 10**18, 10**18), ("four", None, [8]), (4.5, 2.5, 8.5), (True, False, None), (1, 1, 32),
    (32, 32, 1),
]  # fmt: skip
LIES = [{"num_attention_heads": heads, "num_key_value_heads": key_heads, "head_dim": size} for heads, key_heads, size in _HEADS]


@pytest.mark.parametrize(("order", "lie"), crossed(["blocks", "groups"], LIES))
def test_numbers_of_heads_that_lie(lie: dict[str, Any], order: Any, tmp_path: Path) -> None:
    """Blocks are found by the shapes; an order by head may be missed, but then nothing is claimed."""
    fused = fuse_gate_up(fuse_qkv(llama(), order, KEY_HEADS))
    if order == "blocks":
        unchanged(tmp_path, llama(), fused, CONFIG | lie)
        return
    one, other = write(tmp_path / "base", llama(), CONFIG | lie), write(tmp_path / "tuned", fused, CONFIG | lie)
    report, family = sparsity(one, other, "exact"), parents(other, one, "exact")
    equal = report.num_changed == 0 and all(coverage.whole for coverage in report.coverage)
    assert (family.verdict == "same-weights") == equal
    wrong = {name for name, rows in rows_by_name(family).items() if any(row.relation not in FAITHFUL for row in rows)}
    assert wrong == (set() if equal else {name for name in fused if "qkv_proj" in name})


@pytest.mark.parametrize(
    ("key", "lie"),
    crossed(["num_experts", "num_local_experts", "n_routed_experts"], [0, -1, 3, 5, 10**18, "four", None, [4], 4.5, True]),
)
def test_numbers_of_experts_that_lie(lie: Any, key: str, tmp_path: Path) -> None:
    """The shapes say how many there are."""
    of = architecture("qwen3_moe")
    unchanged(tmp_path, of.state, stack_experts(of.state, "blocks", inputs_first=False), of.config | {key: lie})


@pytest.mark.parametrize(
    "config",
    few(
        [
            {}, architecture("bert").config, architecture("gpt_neox").config, architecture("gpt_oss").config, {"num_hidden_layers": 10**18},
            {"model_type": 7, "architectures": "LlamaForCausalLM"}, {"model_type": "no_such_model", "text_config": []},
        ],
        {3, 5},
        ["empty", "bert", "gpt_neox", "gpt_oss", "layers", "of other types", "unknown"],
    ),
)  # fmt: skip
def test_the_configuration_of_another_model(config: dict[str, Any], tmp_path: Path) -> None:
    unchanged(tmp_path, llama(), fuse_gate_up(fuse_qkv(llama(), "blocks", KEY_HEADS)), config)
    transposed = tmp_path / "transposed"
    unchanged(transposed, llama(), transpose_linear(llama()), CONFIG, config)


def test_no_configuration(tmp_path: Path) -> None:
    one = write(tmp_path / "base", llama())
    other = write_pickle(tmp_path / "tuned", fuse_gate_up(fuse_qkv(llama(), "blocks", KEY_HEADS)))
    assert parents(other, one, "exact").verdict == "same-weights"


def test_a_side_that_is_half_empty(tmp_path: Path) -> None:
    """Every second tensor has no values: what is left is compared, and the verdict does not reach further."""
    state = fuse_qkv(llama(), "groups", KEY_HEADS)
    half = {name: torch.empty(0, dtype=BF16) if at % 2 else tensor for at, (name, tensor) in enumerate(state.items())}
    one, other = write(tmp_path / "base", llama(), CONFIG), write(tmp_path / "half", half, CONFIG)
    for base, model in ((one, other), (other, one)):
        report, family = sparsity(base, model, "exact"), parents(model, base, "exact")
        assert report.num_changed == 0 and family.verdict != "same-weights"
        of_half = report.coverage[0 if base == other else 1]
        assert of_half.classes["empty"].tensors == sum(not tensor.numel() for tensor in half.values())
        assert not any(coverage.whole for coverage in report.coverage)


# Very many tensors.

COUNTS = [10_000, pytest.param(200_000, marks=pytest.mark.exhaustive)]
# Processor time for 20,000 tensors, several times what a slow machine needs; work that is quadratic takes hours.
SECONDS = 60


def write_many(folder: Path, count: int, name: str, shape: tuple[int, ...] = (2, 2)) -> Path:
    """``count`` tensors of one shape with names formed from their number, written without the library, which is slow with so many."""
    size = 2 * prod(shape)
    header = {name.format(at): {"dtype": "BF16", "shape": shape, "data_offsets": [at * size, (at + 1) * size]} for at in range(count)}
    raw = json.dumps(header).encode()
    data = values(name, (count * prod(shape),), BF16).view(torch.uint8).numpy().tobytes()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return folder


# Layers that might be others, and experts that might be stacked, are the ones that are looked for.
@pytest.mark.parametrize("count", COUNTS)
def test_very_many_tensors_without_a_common_name(count: int, tmp_path: Path) -> None:
    single, stacked = "model.layers.0.mlp.experts.{0}.up_proj.weight", "model.layers.0.mlp.experts.up_proj.{0}"
    one, other = write_many(tmp_path / "one", count, single), write_many(tmp_path / "other", count, stacked)
    start = time.process_time()
    for run in (lambda: compare(one, other, mode="quick"), lambda: parents(other, one, "quick")):
        said, report = "", None
        try:
            report = run()
        except MantissaError as error:
            said = str(error)
        assert said.isprintable() and len(said) < 600
        if report is not None:
            assert not any(coverage.whole for coverage in report.coverage)
            assert sum(len(coverage.left_out) for coverage in report.coverage) < 1_000
            assert len(report.model_dump_json()) < 20_000_000
    assert time.process_time() - start < SECONDS * count / 20_000
