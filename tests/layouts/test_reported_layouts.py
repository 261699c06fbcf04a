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
from tests.dtype.reports import exact
from tests.layouts.architectures import BF16, F32, WIDTH, State, architecture, llama, values
from tests.layouts.file_formats import write, write_pickle
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


def test_other_experts_are_not_the_same_weights(tmp_path: Path) -> None:
    """A quarter of the weights agrees, the experts do not: that is neither the same nor a small difference."""
    other = {
        name: values(f"another {name}", tuple(tensor.shape), BF16) if "experts" in name else tensor for name, tensor in stacked().items()
    }
    one, model = write(tmp_path / "single", EXPERTS.state, EXPERTS.config), write(tmp_path / "stacked", other, EXPERTS.config)
    report = parents(model, one, "exact")
    assert report.verdict not in ("same-weights", "quantized-copy")
    assert all(coverage.whole for coverage in report.coverage)
    assert report.answer.code == "damaged"
    changed = sum(
        int((other[name] != tensor).sum()) for name, tensor in stacked().items()
    )  # a few of the new values are the old ones by chance
    assert changed > 0.9 * elements(EXPERTS.state, "experts")
    assert sparsity(one, model, "exact").num_changed == changed


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


def beside(base: State, rank: int = 4) -> State:
    """The base in peft's wrappers, with the matrices of an adapter beside queries and values."""
    wrapped = FORMS["wrapped by peft"](architecture("llama"), base)
    for name in list(wrapped):
        if name.endswith("base_layer.weight"):
            rows, columns = wrapped[name].shape
            module = name.removesuffix("base_layer.weight")
            wrapped[f"{module}lora_A.default.weight"] = values(f"{module}A", (rank, columns), F32)
            wrapped[f"{module}lora_B.default.weight"] = values(f"{module}B", (rows, rank), F32)
    return wrapped


def test_an_adapter_beside_its_base_makes_another_model(tmp_path: Path) -> None:
    base = write(tmp_path / "base", llama(), LLAMA)
    model = write_pickle(tmp_path / "beside", beside(llama()), LLAMA)
    report = parents(model, base, "exact")
    assert report.verdict == "derived"
    assert "adapter" in report.headline and "rank 4" in said(report) and "use either" not in said(report)
    of_model, of_base = report.coverage
    assert of_model.classes["adapter"].tensors == len(beside(llama())) - len(llama())
    assert of_model.classes["adapter"].parameters == elements(beside(llama()), "lora_")
    assert of_model.covered == elements(llama()) and not of_model.whole and of_base.whole
    change = sparsity(base, model, "exact")
    assert change.num_changed == 0 and "adapter" in said(change)
    assert "unchanged" not in rules(checked(model, base))


def test_empty_tensors_are_an_error(tmp_path: Path) -> None:
    state = {name: tensor if "norm" in name else torch.empty(0, dtype=BF16) for name, tensor in llama().items()}
    empty = [name for name in state if "norm" not in name]
    folder = write(tmp_path / "empty", state, LLAMA)
    report = checked(folder)
    (finding,) = [each for each in report.findings if each.rule == "empty"]
    assert finding.level == "error" and set(finding.tensors) == set(empty)
    assert f"{len(empty)} of {len(state)}" in f"{finding.title} {finding.detail}"
    (coverage,) = exact(folder).coverage
    assert coverage.classes["empty"].tensors == len(empty) and not coverage.whole
    base = write(tmp_path / "base", llama(), LLAMA)
    assert parents(folder, base, "exact").verdict != "same-weights"
    assert "unchanged" not in rules(checked(folder, base))


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


def test_a_layer_missing_in_the_middle_is_damage(tmp_path: Path) -> None:
    """Not renumbered, and config.json counts all layers: transformers would initialise it at random."""
    state = {name: tensor for name, tensor in llama(6).items() if ".layers.3." not in name}
    base = write(tmp_path / "base", llama(6), LLAMA | {"num_hidden_layers": 6})
    report = checked(write(tmp_path / "model", state, LLAMA | {"num_hidden_layers": 6}), base)
    assert rules(report, "error") & {"loads", "missing"}, said(report)


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
