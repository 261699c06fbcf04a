"""Layouts that people report trouble with: what each report has to say, and what it must not say."""

from pathlib import Path

import pytest
import torch

from analyzers.check import CheckReport, CheckRequest
from analyzers.check import analyze as check
from analyzers.checkpoints import Access
from analyzers.comparison.parents import ParentsReport
from analyzers.comparison.sparsity import SparsityReport
from tests.cases import few
from tests.layouts.architectures import BF16, WIDTH, State, architecture, llama, values
from tests.layouts.file_formats import write
from tests.layouts.pairs import parents, sparsity
from tests.layouts.relayouts import FORMS, stack_experts, with_layers

LLAMA = architecture("llama").config
EXPERTS = architecture("qwen3_moe")


def checked(model: Path, base: Path | None = None) -> CheckReport:
    """The report of `check`."""
    *_, report = check(CheckRequest(model=str(model), base=str(base) if base else None), Access(local=True))
    assert isinstance(report, CheckReport)
    return report


def rules(report: CheckReport, *levels: str) -> set[str]:
    """Rules with a finding of one of these levels, of any if none is named."""
    return {each.rule for each in report.findings if not levels or each.level in levels}


def elements(state: State, part: str = "") -> int:
    """Elements of the tensors whose names contain ``part``."""
    return sum(tensor.numel() for name, tensor in state.items() if part in name)


def said(report: CheckReport | ParentsReport | SparsityReport) -> str:
    """Everything that a report says in words, in lower case."""
    step = report.advice
    words = [report.headline, *map(str, report.notes), step.text if step else ""]
    words += [f"{left.what} {left.code}" for coverage in report.coverage for left in coverage.left_out]
    words += [f"{each.title} {each.detail}" for each in getattr(report, "findings", ())]
    return "\n".join(words).lower()


def stacked() -> State:
    """The experts of the small mixture in one tensor for each matrix."""
    return stack_experts(EXPERTS.state, "blocks", inputs_first=False)


def moved(state: State, scale: float = 1e-3) -> State:
    """Every value moved."""
    random = torch.Generator().manual_seed(3)
    return {name: (tensor.float() + scale * torch.randn(tensor.shape, generator=random)).to(tensor.dtype) for name, tensor in state.items()}


def test_the_check_of_stacked_experts_finds_nothing_missing(tmp_path: Path) -> None:
    one, other = write(tmp_path / "single", EXPERTS.state, EXPERTS.config), write(tmp_path / "stacked", stacked(), EXPERTS.config)
    report = checked(other, one)
    assert rules(report, "error") <= {"unchanged"}, said(report)
    assert not rules(report) & {"missing", "misshapen", "extra"}
    assert "initialise" not in said(report)


def test_experts_in_both_layouts_are_stored_twice(tmp_path: Path) -> None:
    report = checked(write(tmp_path / "both", EXPERTS.state | stacked(), EXPERTS.config))
    (twice,) = [each for each in report.findings if each.rule == "stored-twice"]
    assert twice.saving_bytes == 2 * elements(EXPERTS.state, "experts")
    name = next(name for name in EXPERTS.state if "experts" in name)
    edited = EXPERTS.state[name].clone()
    edited[-1, -1] += 1
    report = checked(write(tmp_path / "edited", EXPERTS.state | {name: edited} | stacked(), EXPERTS.config))
    (twice,) = [each for each in report.findings if each.rule == "stored-twice"]
    assert twice.saving_bytes == 2 * (elements(EXPERTS.state, "experts") - edited.numel()) and name not in twice.tensors


@pytest.mark.parametrize("tuned_has_copies", few([False, True], {1}))
def test_tied_copies_are_not_missing(tuned_has_copies: bool, tmp_path: Path) -> None:
    """An encoder-decoder with all copies of its embedding, and its fine-tune with one; and the other way round."""
    of = architecture("t5")
    tuned = moved(of.state)
    states = [FORMS["copies of the embedding"](of, state) for state in (of.state, tuned)]
    base = write(tmp_path / "base", of.state if tuned_has_copies else states[0], of.config)
    model = write(tmp_path / "tuned", states[1] if tuned_has_copies else tuned, of.config)
    report = checked(model, base)
    assert not rules(report) & {"missing", "extra", "loads"}, said(report)
    change = sparsity(base, model, "exact")
    assert all(coverage.whole and coverage.covered == elements(of.state) for coverage in change.coverage)
    before, after = (torch.cat([tensor.flatten() for tensor in state.values()]).to(BF16) for state in (of.state, tuned))
    assert change.num_changed == int((before != after).sum())


def test_dropped_layers_are_no_damage(tmp_path: Path) -> None:
    base = write(tmp_path / "base", llama(6), LLAMA | {"num_hidden_layers": 6})
    pruned = write(tmp_path / "pruned", with_layers(llama(6), (0, 1, 4, 5)), LLAMA | {"num_hidden_layers": 4})
    report = checked(pruned, base)
    assert not rules(report, "error"), said(report)
    change = sparsity(base, pruned, "exact")
    assert change.num_changed == 0 and "layers 2 and 3" in said(change)


def test_a_part_that_agrees_is_not_the_whole(tmp_path: Path) -> None:
    """A model of which another has no counterpart for most: every value compared is equal, and the verdict is not `same-weights`."""
    part = {name: tensor for name, tensor in llama().items() if "mlp" not in name}
    one, other = write(tmp_path / "whole", llama(), LLAMA), write(tmp_path / "part", part, LLAMA)
    for model, candidate in ((one, other), (other, one)):
        report = parents(model, candidate, "exact")
        assert report.verdict != "same-weights"
        assert any(not coverage.whole for coverage in report.coverage)
        share = next(coverage for coverage in report.coverage if not coverage.whole).suffix()
        assert share and share.split("%")[0].split()[-1] in report.headline, (share, report.headline)
        assert "use either" not in said(report)
    found = checked(other, one)
    assert "unchanged" not in rules(found)


@pytest.mark.parametrize("copy", few(["lm_head.weight", "model.layers.0.copy.weight"], {1}))
def test_a_copy_that_drifted_in_one_row_is_not_tied(copy: str, tmp_path: Path) -> None:
    """The other side does not store it: exact mode has compared all of it before it says that every value is equal."""
    state = {name: tensor for name, tensor in llama(2).items() if name != "lm_head.weight"}
    state["model.embed_tokens.weight"] = values("a long embedding", (40_000, WIDTH), BF16)
    drifted = state["model.embed_tokens.weight"].clone()
    drifted[17_001] += 1
    config = LLAMA | {"num_hidden_layers": 2, "vocab_size": 40_000, "tie_word_embeddings": True}
    one, other = write(tmp_path / "base", state, config), write(tmp_path / "model", state | {copy: drifted}, config)
    report = parents(other, one, "exact")
    assert report.verdict != "same-weights" and "use either" not in said(report)
    assert not all(coverage.whole for coverage in report.coverage) or report.conversion[0].relation != "equal"
    change = sparsity(one, other, "exact")
    assert change.num_changed or not change.coverage[1].whole
