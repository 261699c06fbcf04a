"""The rules about adapters: each finds what it is for in an adapter that is otherwise healthy."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from analyzers.check import CheckReport, CheckRequest, analyze
from analyzers.checkpoints import Access
from tests.dtype.checkpoints import normal
from tests.sparsity.adapters import base, factors, write_adapter
from tests.sparsity.checkpoints import Tensors

Change = Callable[[Path, Tensors, dict[str, object]], None]


def check(model: Path | str, against: Path | None = None) -> CheckReport:
    """Check an adapter, with its base if one is given."""
    request = CheckRequest(model=str(model), base=str(against) if against else None)
    report = list(analyze(request, Access(local=True)))[-1]
    assert isinstance(report, CheckReport)
    return report


def built(folder: Path, change: Change | None = None) -> tuple[Path, Path]:
    """Write a base and an adapter with ``change`` applied to its folder, its tensors and its configuration."""
    model, tensors = base(folder)
    (model / "config.json").write_text("{}")  # transformers is not asked
    adapter = write_adapter(folder / "adapter", factors(tensors, 1e-3, "q_proj"), base_model_name_or_path="/of/the/trainer")
    if change is not None:
        file, settings = adapter / "adapter_model.safetensors", adapter / "adapter_config.json"
        stored, config = load_file(file), json.loads(settings.read_text())
        change(adapter, stored, config)
        save_file(stored, file)
        if settings.exists():
            settings.write_text(json.dumps(config))
    return model, adapter


def unjudged(report: CheckReport) -> str:
    """Why it was not judged whether the adapter fits its base."""
    return next(str(note.values["why"]) for note in report.notes if note.code == "fit-not-judged")


def _each(stored: Tensors, part: str) -> list[str]:
    return [name for name in stored if part in name]


def changed(part: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Change the tensors whose names contain ``part``."""
    return lambda folder, stored, config: stored.update({name: change(stored[name]) for name in _each(stored, part)})


def renamed(part: str, rename: Callable[[str], str]) -> Change:
    """Rename the tensors whose names contain ``part``."""
    return lambda folder, stored, config: stored.update({rename(name): stored.pop(name) for name in _each(stored, part)})


def stating(**settings: object) -> Change:
    """Change the configuration."""
    return lambda folder, stored, config: config.update(settings)


def storing(tensors: Tensors, **settings: object) -> Change:
    """Add tensors, and change the configuration."""

    def change(folder: Path, stored: Tensors, config: dict[str, object]) -> None:
        stored |= tensors
        config |= settings

    return change


def unconfigured(folder: Path, stored: Tensors, config: dict[str, object]) -> None:
    """Delete the configuration."""
    (folder / "adapter_config.json").unlink()


def whole_model(folder: Path, stored: Tensors, config: dict[str, object]) -> None:
    """Store a merged model under the name of an adapter."""
    stored.clear()
    stored["model.layers.0.self_attn.q_proj.weight"] = normal(64, 64)


EMPTY, IGNORED = ("adapter-empty", "modules-without-effect"), ("adapter-unmatched", "modules-that-peft-ignores")
UNMERGED, UNUSABLE = ("adapter-unmatched", "modules-not-merged"), ("adapter-config", "adapter-configuration-unusable")
HEAD = {"base_model.model.score.weight": normal(3, 64)}
CASES = [
    (renamed("layers.1", lambda name: name.replace("layers.1", "layers.9")), "adapter-unmatched", "modules-not-applied", "error"),
    (changed("lora_A", lambda a: normal(4, 65)), "adapter-base", "base-does-not-fit", "error"),
    (changed("layers.1.self_attn.q_proj.lora_B", lambda b: 0 * b), *EMPTY, "warning"),
    (changed("lora_B", lambda b: 0 * b), *EMPTY, "error"),
    (stating(lora_alpha=0), *EMPTY, "error"),
    (changed("layers.0.self_attn.q_proj.lora_B", lambda b: b / 0), "non-finite", "weights-not-finite", "error"),
    (stating(r=8), *UNUSABLE, "error"),
    (unconfigured, *UNUSABLE, "error"),
    (stating(r=0), *UNUSABLE, "error"),
    (whole_model, "adapter-upload", "weights-stored-as-adapter", "error"),
    (renamed("", lambda name: f"module.{name}"), *IGNORED, "error"),
    (renamed("", lambda name: name.replace("self_attn.", "self_attn._orig_mod.")), *IGNORED, "error"),
    (renamed("", lambda name: name.removeprefix("base_model.model.")), *IGNORED, "error"),
    (renamed("", lambda name: name.replace(".weight", ".policy.weight")), *IGNORED, "error"),
    (storing(HEAD, modules_to_save=["classifier", "score"]), *UNMERGED, "warning"),
]


@pytest.mark.parametrize(("change", "rule", "code", "level"), CASES)
def test_a_rule_finds(change: Change, rule: str, code: str, level: str, tmp_path: Path) -> None:
    model, adapter = built(tmp_path, change)
    report = check(adapter, model)
    (found,) = (each for each in report.findings if each.rule == rule)
    assert (found.code, found.level) == (code, level)
    assert {each.rule for each in report.findings} <= {rule, "adapter-config"}, report.findings
    assert report.adapter and report.fails("error") == (level == "error")


def test_no_rule_finds_anything_in_a_healthy_adapter(tmp_path: Path) -> None:
    model, adapter = built(tmp_path)
    report = check(adapter, model)
    assert not report.findings and report.loading_judged and report.base is not None
    merged = check(f"{model}+{adapter}")
    assert not [each for each in merged.findings if each.rule.startswith("adapter") or each.rule == "upcast"]


def test_without_its_base_nothing_is_said_of_the_match(tmp_path: Path) -> None:
    _, adapter = built(tmp_path, changed("lora_A", lambda a: normal(4, 65)))
    report = check(adapter)
    assert report.base is None and not report.loading_judged and not report.findings
    assert "/of/the/trainer" in unjudged(report) and report.answer.code == "nothing-unjudged"


def test_a_base_that_is_an_adapter_itself(tmp_path: Path) -> None:
    """Without the modules of the adapter it is not a model."""
    _, adapter = built(tmp_path, stating(base_model_name_or_path="sample:tiny-adapter"))
    report = check(adapter)
    assert not report.findings and "is an adapter itself" in unjudged(report)


def test_an_adapter_that_is_stored_unmerged(tmp_path: Path) -> None:
    model, adapter = built(tmp_path)
    stored = load_file(model / "model.safetensors")
    stored = {name.replace("q_proj.weight", "q_proj.base_layer.weight"): tensor for name, tensor in stored.items()}
    stored |= {name.removeprefix("base_model.model."): each for name, each in load_file(adapter / "adapter_model.safetensors").items()}
    save_file(stored, model / "model.safetensors")
    shutil.copy(adapter / "adapter_config.json", model)
    (found,) = (each for each in check(model).findings if each.rule.startswith("adapter"))
    assert (found.rule, found.code) == ("adapter-upload", "adapter-stored-unmerged")


def test_an_adapter_that_is_stored_as_a_model(tmp_path: Path) -> None:
    _, adapter = built(tmp_path)
    (adapter / "adapter_model.safetensors").rename(adapter / "model.safetensors")
    (adapter / "config.json").write_text("{}")
    (found,) = check(adapter).findings
    assert (found.rule, found.code) == ("adapter-upload", "adapter-stored-as-model")


def test_the_adapters_of_a_merged_checkpoint_are_checked(tmp_path: Path) -> None:
    model, adapter = built(tmp_path, changed("layers.1.self_attn.q_proj.lora_B", lambda b: 0 * b))
    rules = [each.rule for each in check(f"{model}+{adapter}").findings]
    assert "adapter-empty" in rules


def test_an_adapter_with_the_weights_of_a_changed_head_is_an_adapter(tmp_path: Path) -> None:
    """peft saves the weights of embeddings and heads that it changes."""

    head = {f"base_model.model.lm_head.lora_{side}.weight": normal(*shape) for side, shape in (("A", (4, 64)), ("B", (96, 4)))}
    head["base_model.model.lm_head.base_layer.weight"] = normal(96, 64, seed=7)
    model, adapter = built(tmp_path, storing(head))
    report = check(adapter, model)
    assert report.adapter and not report.findings


def test_parameters_of_another_method_are_no_whole_weights(tmp_path: Path) -> None:
    def other_method(_: Path, stored: Tensors, config: dict[str, object]) -> None:
        stored.clear()
        stored["base_model.model.model.layers.0.self_attn.q_proj.boft_R"] = normal(1, 8, 4, 4)
        config["peft_type"] = "BOFT"

    model, adapter = built(tmp_path, other_method)
    report = check(adapter, model)
    assert not report.findings and not report.loading_judged
    assert "BOFT" in unjudged(report)


def test_rules_about_models_are_not_applied_to_adapters(tmp_path: Path) -> None:
    """Equal A, and whole tensors that repeat each other, are normal in an adapter."""

    def change(_: Path, stored: Tensors, config: dict[str, object]) -> None:
        first, *others = _each(stored, "lora_A")
        for name in others:
            stored[name] = stored[first].clone()
        for name in ("lm_head.weight", "lm_head.original_module.weight"):
            stored[f"base_model.model.{name}"] = normal(96, 64, seed=7)
        config["modules_to_save"] = ["lm_head"]

    model, adapter = built(tmp_path, change)
    report, together = check(adapter, model), check(f"{model}+{adapter}")
    assert not report.findings and not together.findings
    assert "stored-twice" in report.not_applied and "upcast" in together.not_applied
