"""Quick mode reads the same places of both sides under every form, and within its budget; exact mode counts as torch does."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from analyzers.core import limits
from tests.cases import few
from tests.layouts.architectures import BF16, KEY_HEADS, State, architecture, llama
from tests.layouts.file_formats import write, write_pickle
from tests.layouts.relayouts import META, fuse_gate_up, fuse_qkv, renamed, rotary, stack_experts, transpose_linear
from tests.parents.checkpoints import asked
from tests.sparsity.oracle_comparison import compare

# Eight times as wide as the small one: 3.0 MB in bf16, of which a budget is a fifth or less.
TIMES, BUDGETS = 8, (120_000, 600_000)
CONFIG = architecture("llama").config | {"head_dim": 8 * TIMES}
Change = Callable[[State], State]
CHANGES: dict[str, Change] = {
    "as it is": lambda state: dict(state),
    "in blocks": lambda state: fuse_gate_up(fuse_qkv(state, "blocks", KEY_HEADS)),
    "by group": lambda state: fuse_qkv(state, "groups", KEY_HEADS),
    "transposed": transpose_linear,
    "transposed in blocks": lambda state: transpose_linear(fuse_gate_up(fuse_qkv(state, "blocks", KEY_HEADS))),
    "Meta": lambda state: renamed(rotary(state, KEY_HEADS), META),
}


@cache
def wide() -> State:
    return llama(2, times=TIMES)


@cache
def mixture() -> State:
    """Experts in place of the MLPs: four of them in each layer."""
    result = {name: tensor for name, tensor in wide().items() if ".mlp." not in name}
    for expert in range(4):
        for name, tensor in llama(2, seed=100 + expert, times=TIMES).items():
            if ".mlp." in name:
                result[name.replace(".mlp.", f".mlp.experts.{expert}.")] = tensor
    return result


STACKS: dict[str, Change] = {
    "stacked": lambda state: stack_experts(state, "separate", inputs_first=False),
    "stacked, inputs first": lambda state: stack_experts(state, "separate", inputs_first=True),
    "stacked and fused": lambda state: stack_experts(state, "blocks", inputs_first=False),
    "stacked and alternating": lambda state: stack_experts(state, "interleaved", inputs_first=True),
}
EVERY: list[tuple[Callable[[], State], str, Change]] = [(wide, name, change) for name, change in CHANGES.items()]
EVERY += [(mixture, name, change) for name, change in STACKS.items()]


def _forms(*kept: int) -> pytest.MarkDecorator:
    """Parametrize a test by all forms, those not numbered in ``kept`` in the exhaustive suite."""
    cases = few([(made, change) for made, _, change in EVERY], kept, [name for _, name, _ in EVERY])
    return pytest.mark.parametrize(("made", "change"), cases)


def tuned(state: State, seed: int = 1, share: float = 0.3, only: str = "") -> State:
    """A share of the values of some tensors doubled, by which each of these changes in bf16."""
    random = torch.Generator().manual_seed(seed)
    return {
        name: torch.where(torch.rand(tensor.shape, generator=random) < share, tensor * 2, tensor) if only in name else tensor
        for name, tensor in state.items()
    }


def changed(before: State, after: State, part: str = "") -> int:
    """Elements whose values differ, by torch."""
    return sum(int((before[name].to(BF16) != after[name].to(BF16)).sum()) for name in before if part in name)


@_forms(0, 2, 4, 6, 8)
def test_the_same_places_are_read(made: Callable[[], State], change: Change, tmp_path: Path) -> None:
    """Where the layout alone differs any other place would show other values."""
    one, other = write(tmp_path / "original", made(), CONFIG), write(tmp_path / "relaid", change(made()), CONFIG)
    for budget, (base, model) in zip(BUDGETS, ((one, other), (other, one)), strict=True):
        report = compare(base, model, mode="quick", budget=budget)
        assert report.num_changed == 0 and 0 < report.values_compared < report.total_parameters
        assert report.bytes_read <= 2 * budget and report.requests <= 8 * limits.RANGE_REQUESTS
        assert all(coverage.share == 1 for coverage in report.coverage)
        family = asked(str(model), str(base), budget=budget)
        assert family.bytes_read <= 2 * budget and family.verdict == "same-weights"
        assert all(row.relation == "equal" for row in family.conversion if row.values)  # of the smaller tensors nothing may be read


@_forms(4, 9)
def test_exact_mode_counts_what_torch_counts(made: Callable[[], State], change: Change, tmp_path: Path) -> None:
    after = tuned(made())
    one, other = write(tmp_path / "base", made(), CONFIG), write_pickle(tmp_path / "tuned", change(after), CONFIG)
    expected = changed(made(), after)
    for base, model in ((one, other), (other, one)):
        report = compare(base, model)
        assert (report.num_changed, report.probe.num_changed) == (expected, expected)
        assert report.values_compared == sum(tensor.numel() for tensor in made().values())
        assert all(coverage.whole for coverage in report.coverage)
    for role, part in (("norm", "norm"), ("embedding", "embed_tokens"), ("head", "lm_head")):
        assert report.roles[role].num_changed == changed(made(), after, part)
    for row in report.layers:
        part = "" if row.layer is None else f".layers.{row.layer}."
        if part:
            assert row.num_changed == changed(made(), after, part)


@_forms(1, 3, 5, 7)
def test_changes_are_found_where_they_are(made: Callable[[], State], change: Change, tmp_path: Path) -> None:
    """Every value of some tensors changed and no other: all that is read of these changed, and nothing else."""
    part = ("k_proj", "up_proj", "down_proj", "o_proj")[len(change(made())) % 4]
    after = tuned(made(), share=1.0, only=part)
    one, other = write(tmp_path / "base", made(), CONFIG), write(tmp_path / "tuned", change(after), CONFIG)
    for mode in ({"mode": "quick", "budget": 2 * BUDGETS[1]}, {"mode": "exact"}):
        report = compare(one, other, **mode)
        assert "budget" in mode or sum(row.values_read for row in report.tensors if part in row.name) > 0
        for row in report.tensors:
            assert row.num_changed == (row.values_read if part in row.name else 0), row


@pytest.mark.parametrize("mode", few(["quick", "exact"], {0}))
def test_several_fine_tunes_in_several_layouts(mode: str, tmp_path: Path) -> None:
    """Against the base and step to step, each as torch counts it."""
    states = [wide(), tuned(wide(), seed=1, share=0.1), tuned(wide(), seed=2, share=0.2), tuned(wide(), seed=3, share=0.3)]
    changes = [CHANGES[name] for name in ("as it is", "by group", "transposed", "in blocks")]
    folders = [write(tmp_path / str(at), change(state), CONFIG) for at, (change, state) in enumerate(zip(changes, states, strict=True))]
    report = compare(*folders, mode=mode)
    for at, row in enumerate(report.trajectory, 1):
        assert row.num_changed == changed(states[0], states[at])
        assert row.step.num_changed == changed(states[at - 1], states[at])
    assert len(report.coverage) == len(states) and all(coverage.whole for coverage in report.coverage)


def test_a_damaged_part_is_found_within_a_budget(tmp_path: Path) -> None:
    """A key of zeros inside a fused qkv, in quick mode."""
    damaged = wide() | {"model.layers.1.self_attn.k_proj.weight": torch.zeros_like(wide()["model.layers.1.self_attn.k_proj.weight"])}
    one, other = write(tmp_path / "base", wide(), CONFIG), write(tmp_path / "model", CHANGES["by group"](damaged), CONFIG)
    report = asked(str(other), str(one))
    assert report.verdict != "same-weights"
    wrong = {row.name.partition("[")[0].strip() for row in report.conversion if row.relation != "equal"}
    assert wrong == {"model.layers.1.self_attn.qkv_proj.weight"}
