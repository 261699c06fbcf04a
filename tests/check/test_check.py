"""Check: each rule on a checkpoint that breaks it and on one that does not, exit statuses, and what is printed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from analyzers.__main__ import main
from analyzers.check.report import Rule
from analyzers.checkpoints import Access, open_checkpoint, read_range
from analyzers.formatting import size
from analyzers.language_models.samples import sample_folder
from tests.check.test_adapters import CASES as ADAPTER_CASES
from tests.dtype_detection.checkpoints import normal, through, write
from tests.dtype_detection.quantized import integers, weights
from tests.dtype_detection.reports import exact
from tests.hub import LocalHub

BF16 = torch.bfloat16
CONFIG = {"tie_word_embeddings": False, "dtype": "bfloat16"}  # names no architecture: `loads` has tests of its own
UP, NORM, EMBEDDING, HEAD = "model.layers.0.mlp.up_proj.weight", "model.norm.weight", "model.embed_tokens.weight", "lm_head.weight"
FIRST_NORM = "model.layers.0.input_layernorm.weight"
Values = dict[str, torch.Tensor]


def healthy(**replaced: torch.Tensor) -> Values:
    """A native bf16 checkpoint in which no rule finds anything."""
    values = {UP: normal(128, 64), NORM: normal(64, scale=1), EMBEDDING: normal(256, 64, seed=1), HEAD: normal(256, 64, seed=2)}
    return {name: value.to(BF16) for name, value in values.items()} | replaced


def wide(values: Values) -> Values:
    return {name: value.float() for name, value in values.items()}


def check(capsys: pytest.CaptureFixture[str], model: str | Path, *more: str, status: int = 0) -> Any:
    """The JSON of a check that ends with ``status``."""
    assert main(["check", str(model), "--json", *more]) == status
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def with_value(tensor: torch.Tensor, value: float) -> torch.Tensor:
    copy = tensor.clone()
    copy.view(-1)[7] = value
    return copy


def pickled(folder: Path) -> Path:
    folder.mkdir()
    torch.save(healthy(), folder / "pytorch_model.bin")
    return folder


def sharded(folder: Path, **metadata: int) -> tuple[list[str], dict[str, str]]:
    """Two shards with a right index; returns their names, and its map."""
    folder.mkdir()
    files = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    values = healthy()
    for file, names in zip(files, ((UP, NORM), (EMBEDDING, HEAD)), strict=True):
        save_file({name: values[name] for name in names}, folder / file)
    weight_map = {UP: files[0], NORM: files[0], EMBEDDING: files[1], HEAD: files[1]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    return files, weight_map


def wrong_index(folder: Path) -> Path:
    files, weight_map = sharded(folder)
    index = {"metadata": {}, "weight_map": weight_map | {EMBEDDING: files[0]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def wrong_count(folder: Path) -> Path:
    sharded(folder, total_size=5)
    return folder


def right_index(folder: Path) -> Path:
    sharded(folder, total_size=sum(value.nbytes for value in healthy().values()))
    return folder


def fossil(folder: Path) -> Path:
    """A matrix in fp32 that was trained on after its embedding of unused rows had passed through bf16."""
    matrix = normal(256, 64)
    matrix[:40] = through(matrix[:40], BF16, torch.float32)
    return write(folder, {EMBEDDING: matrix, UP: normal(128, 64)}, {**CONFIG, "dtype": "float32"})


def with_projector(folder: Path) -> Path:
    """Weights in a folder that nothing names."""
    write(folder / "projector", {"linear.weight": normal(8, 8)})
    return write(folder, HEALTHY, CONFIG)


Case = tuple[Rule, str, Callable[[Path], Path], int, list[str]]
HEALTHY = healthy()
INT4 = torch.from_numpy(integers(weights(128, 64), 4, 32, False, torch.float32)).float().to(BF16)
CASES: list[Case] = [
    ("non-finite", "error", lambda f: write(f, HEALTHY | {UP: with_value(HEALTHY[UP], torch.nan)}, CONFIG), 0, [UP]),
    ("non-finite", "error", lambda f: write(f, HEALTHY | {NORM: with_value(HEALTHY[NORM], -torch.inf)}, CONFIG), 0, [NORM]),
    ("index", "error", wrong_index, 0, []),
    ("index", "warning", wrong_count, 0, []),
    ("not-read", "warning", with_projector, 0, ["projector/model.safetensors"]),
    ("upcast", "warning", lambda f: write(f, wide(HEALTHY), {**CONFIG, "dtype": "float32"}), 2 * (128 + 1 + 256 + 256) * 64, [*HEALTHY]),
    ("stored-twice", "warning", lambda f: write(f, HEALTHY | {HEAD: HEALTHY[EMBEDDING].clone()}, CONFIG), 0, [HEAD]),
    ("config-dtype", "warning", lambda f: write(f, HEALTHY, {**CONFIG, "dtype": "float16"}), 0, []),
    ("config-dtype", "warning", lambda f: write(f, HEALTHY, {"torch_dtype": "float32"}), 0, []),
    ("config-dtype", "warning", lambda f: write(f, HEALTHY, {"torch_dtype": "half"}), 0, []),
    ("config-dtype", "warning", lambda f: write(f, HEALTHY, {"dtype": "torch.FP32"}), 0, []),
    ("untouched", "warning", lambda f: write(f, HEALTHY | {NORM: torch.ones(64, dtype=BF16)}, CONFIG), 0, [NORM]),
    ("zero-tensor", "warning", lambda f: write(f, HEALTHY | {UP: torch.zeros(128, 64, dtype=BF16)}, CONFIG), 0, [UP]),
    ("pickled", "warning", pickled, 0, []),
    ("fp16-overflow", "info", lambda f: write(f, HEALTHY | {UP: with_value(HEALTHY[UP], 70000)}, CONFIG), 0, [UP]),
    ("fossil-rows", "info", fossil, 0, [EMBEDDING]),
    ("grid", "info", lambda f: write(f, HEALTHY | {UP: INT4}, CONFIG), 128 * 64 * 16 // 8 - 128 * 64 * 9 // 16, [UP]),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "level", "build", "saving", "tensors"), CASES)
def test_a_rule_finds(
    rule: str,
    level: str,
    build: Callable[[Path], Path],
    saving: int,
    tensors: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = check(capsys, build(tmp_path / "in"), status=int(level == "error"))
    (found,) = done["findings"]
    assert (found["rule"], found["level"], found["saving_bytes"], done["saving_bytes"]) == (rule, level, saving, saving)
    assert sorted(found["tensors"]) == sorted(tensors) and found["title"] and found["detail"].endswith((".", "FOLDER"))


def test_no_rule_finds_anything_in_a_healthy_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor where a bias is zero, as biases start, nor in native fp32 with a norm of ones that bf16 would hold: beyond `untouched`."""
    model = write(tmp_path / "in", HEALTHY | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64, dtype=BF16)}, CONFIG)
    assert check(capsys, model)["findings"] == check(capsys, right_index(tmp_path / "sharded"))["findings"] == []
    native = {UP: normal(128, 64), EMBEDDING: normal(256, 64, seed=1), NORM: torch.ones(64)}
    done = check(capsys, write(tmp_path / "native", native, {**CONFIG, "dtype": "float32"}))
    assert [each["rule"] for each in done["findings"]] == ["untouched"]
    assert check(capsys, "sample:tiny-fp32")["findings"] == []


def test_fp16_overflow_is_a_warning_where_fp16_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write(tmp_path / "in", HEALTHY | {UP: with_value(HEALTHY[UP], 70000)}, {**CONFIG, "dtype": "float16"})
    assert {each["rule"]: each["level"] for each in check(capsys, model)["findings"]}["fp16-overflow"] == "warning"


@pytest.mark.parametrize("dtype", ["bf16", "torch.bfloat16", "BFloat16"])
def test_other_spellings_of_a_dtype_are_understood(dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(capsys, write(tmp_path / "in", HEALTHY, {**CONFIG, "dtype": dtype}))["findings"] == []


@pytest.mark.parametrize(("through_bf16", "narrow", "width"), [(False, "fp32", 4), (True, "bf16", 2)])
def test_fp64_that_holds_less_is_waste(
    through_bf16: bool, narrow: str, width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check, the passport's advice and shrink say the same, to the byte."""
    single = {UP: normal(128, 64), EMBEDDING: normal(256, 64, seed=1), HEAD: normal(256, 64, seed=2)}
    values = {name: (value.to(BF16) if through_bf16 else value).double() for name, value in single.items()}
    model = write(tmp_path / "in", values, {**CONFIG, "dtype": "double"})
    (found,) = check(capsys, model)["findings"]
    saving = (8 - width) * (128 + 256 + 256) * 64
    assert (found["rule"], found["saving_bytes"]) == ("upcast", saving) and f"values that fit {narrow} bit for bit" in found["detail"]
    report = exact(model)
    assert (report.narrower, report.narrower_saves) == (narrow, saving)
    assert main(["shrink", str(model), "--out", str(tmp_path / "out"), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["bytes_before"] - done["bytes_after"] == saving
    assert done["config_dtype"] == {"fp32": "float32", "bf16": "bfloat16"}[narrow]
    assert check(capsys, tmp_path / "out")["findings"] == []


def test_what_check_counts_is_what_shrink_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To the byte, with a buffer, a norm of ones, a native tensor and a tied head; and then there is nothing left to save."""
    tied = wide(HEALTHY) | {
        NORM: torch.ones(64),
        HEAD: HEALTHY[EMBEDDING].float(),
        "model.layers.1.mlp.up_proj.weight": normal(64, 64, seed=9),
    }
    tied["model.layers.0.self_attn.masked_bias"] = torch.tensor(-1e9)
    model = write(tmp_path / "in", tied, {**CONFIG, "tie_word_embeddings": True, "dtype": "float32"})
    before = check(capsys, model)
    assert {each["rule"] for each in before["findings"]} == {"upcast", "stored-twice", "untouched"}
    assert main(["shrink", str(model), "--out", str(tmp_path / "out"), "--json"]) == 0
    shrunk = json.loads(capsys.readouterr().out)
    assert before["saving_bytes"] == shrunk["bytes_before"] - shrunk["bytes_after"] > 0
    after = check(capsys, tmp_path / "out")
    assert (after["saving_bytes"], after["checkpoint"]["bytes"]) == (0, shrunk["bytes_after"])


def test_what_is_found_is_mended_and_the_model_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bf16 model saved in fp32 by transformers, in shards: what that wastes, to the byte; then there is nothing left to find."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 256,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    model: Any = LlamaForCausalLM(LlamaConfig(**sizes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter += torch.randn_like(parameter) / 10  # as training would have
    model.to(BF16).float().save_pretrained(tmp_path / "in", max_shard_size="60kB")
    capsys.readouterr()  # the progress bars of transformers
    stored = sum(2 * parameter.numel() for parameter in model.parameters())
    (found,) = check(capsys, tmp_path / "in")["findings"]
    assert (found["rule"], found["saving_bytes"]) == ("upcast", stored)
    assert main(["shrink", str(tmp_path / "in"), "--out", str(tmp_path / "out")]) == 0
    before: Any = LlamaForCausalLM.from_pretrained(tmp_path / "in", dtype=BF16)
    after: Any = LlamaForCausalLM.from_pretrained(tmp_path / "out")
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert after.dtype == BF16 and torch.equal(before(tokens).logits, after(tokens).logits)
    capsys.readouterr()
    done = check(capsys, tmp_path / "out")
    assert (done["findings"], done["checkpoint"]["bytes"], done["notes"]) == ([], stored, [])


def test_a_copy_of_a_wide_tensor_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As much as shrink saves, which stores it in bf16 and keeps the copy: the configuration does not tie the two."""
    twice = wide({EMBEDDING: HEALTHY[EMBEDDING], HEAD: HEALTHY[EMBEDDING].clone()})
    done = check(capsys, write(tmp_path / "in", twice, {**CONFIG, "dtype": "float32"}))
    assert {each["rule"]: each["saving_bytes"] for each in done["findings"]} == {"upcast": 2 * 2 * 256 * 64, "stored-twice": 0}
    assert done["saving_bytes"] == done["checkpoint"]["bytes"] // 2


def test_against_a_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = str(write(tmp_path / "base", HEALTHY, CONFIG))

    def rules(values: Values, status: int) -> dict[str, tuple[str, list[str]]]:
        done = check(capsys, write(tmp_path / f"tuned{len(list(tmp_path.iterdir()))}", values, CONFIG), "--base", base, status=status)
        return {each["rule"]: (each["level"], each["tensors"]) for each in done["findings"]}

    tuned = HEALTHY | {UP: with_value(HEALTHY[UP], 0.5)}
    native = str(write(tmp_path / "native", {UP: normal(128, 64)}, CONFIG))
    done = check(capsys, write(tmp_path / "rounded", {UP: normal(128, 64).to(BF16)}, CONFIG), "--base", native, status=1)
    assert [each["rule"] for each in done["findings"]] == ["unchanged"], "rounding is no training either"
    extra = {"model.layers.1.mlp.up_proj.weight": normal(8, 8).to(BF16)}
    assert rules(tuned, 0) == {}
    assert rules(HEALTHY, 1) == {"unchanged": ("error", [])}
    assert rules(wide(HEALTHY), 1).keys() == {"unchanged", "upcast", "config-dtype"}, "a conversion is no training"
    nudged = wide(HEALTHY)
    nudged[UP] = nudged[UP] * (1 + 2.0**-20)
    assert "unchanged" not in rules(nudged, 0), "it was trained, by less than bf16 can see"
    assert rules({name: value for name, value in tuned.items() if name != NORM}, 1) == {"missing": ("error", [NORM])}
    assert rules(tuned | {UP: normal(64, 32).to(BF16), NORM: with_value(HEALTHY[NORM], 3)}, 1) == {"misshapen": ("error", [UP])}
    assert rules(tuned | extra, 0) == {"extra": ("info", [*extra])}


def test_a_base_of_another_architecture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write(tmp_path / "other", {"transformer.h.0.attn.c_attn.weight": normal(64, 192).to(BF16)}, {"model_type": "gpt2"})
    assert main(["check", "sample:tiny-bf16", "--base", str(other)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "Traceback" not in err
    assert main(["check", str(other), "--base", str(other)]) == 2 and "the base is the model itself" in capsys.readouterr().err.lower()


def test_the_card_names_another_base(hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def add(name: str, sample: str, card: str = "") -> None:
        files = {path.name: path.read_bytes() for path in sample_folder(sample).iterdir()}
        hub.add(name, files | {"README.md": card.encode(), "config.json": b"{}"})  # transformers is not asked

    add("org/base", "tiny-bf16")
    add("org/other", "tiny-fp16-mixed")
    add("org/right", "tiny-tuned", "---\nbase_model: org/base\n---\n")
    add("org/wrong", "tiny-tuned", "---\nbase_model: org/other\n---\n")
    add("org/gone", "tiny-tuned", "---\nbase_model: org/missing\n---\n")
    found = {name: check(capsys, name, "--base", "org/base") for name in ("org/right", "org/wrong", "org/gone")}
    rules = {name: {each["rule"]: each["detail"] for each in done["findings"]} for name, done in found.items()}
    assert "base-mismatch" not in rules["org/right"] and "base-mismatch" not in rules["org/gone"]
    assert "names org/other as base_model" in rules["org/wrong"]["base-mismatch"]
    assert "org/missing" in found["org/gone"]["notes"][-1]


def test_what_lost_its_relation_to_the_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A matrix that was initialised anew among trained ones; all of them are another model's."""
    trained = {name: (value.float() * 1.01).to(BF16) for name, value in HEALTHY.items()}
    base, model = (
        write(tmp_path / "base", HEALTHY, CONFIG),
        write(tmp_path / "in", trained | {UP: normal(128, 64, seed=9).to(BF16)}, CONFIG),
    )
    (found,) = [each for each in check(capsys, model, "--base", str(base))["findings"] if each["rule"] == "replaced"]
    assert found["level"] == "warning" and found["tensors"] == [UP]
    other = write(tmp_path / "other", {name: normal(*value.shape, seed=7).to(BF16) for name, value in HEALTHY.items()}, CONFIG)
    (all_of_them,) = [each for each in check(capsys, other, "--base", str(base))["findings"] if each["rule"] == "replaced"]
    assert "nor has any other matrix" in all_of_them["detail"]


def test_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warned = str(write(tmp_path / "warned", wide(HEALTHY), {**CONFIG, "dtype": "float32"}))
    broken = str(write(tmp_path / "broken", HEALTHY | {UP: with_value(HEALTHY[UP], torch.nan)}, CONFIG))
    told = str(write(tmp_path / "told", HEALTHY | {UP: with_value(HEALTHY[UP], 70000)}, CONFIG))
    for model, expected in ((warned, (0, 1, 0)), (broken, (1, 1, 0)), (told, (0, 0, 0))):
        for fail_on, status in zip(("error", "warning", "never"), expected, strict=True):
            assert main(["check", model, "--fail-on", fail_on]) == status
    assert main(["check", str(tmp_path / "missing")]) == 2
    ints = write(tmp_path / "ints", {"a": torch.arange(9)})
    capsys.readouterr()
    assert main(["check", str(ints)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1


def test_markdown_is_inert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "<img src=x>|`@everyone` [a](https://b) \n# **.weight#12 www.a.b &#64;c GH-7"
    model = write(tmp_path / "in", {name: with_value(normal(64, 64), torch.nan).to(BF16), UP: HEALTHY[UP]}, CONFIG)
    assert main(["check", str(model), "--markdown"]) == 1
    out, _ = capsys.readouterr()
    (row,) = [line for line in out.splitlines() if line.startswith("| error")]
    assert "**Weights that are not finite**" in row and len(out.splitlines()) == 9
    for raw in ("<img", "@e", "[a]", "https://", "#1", "www.", "&#64", "GH-"):
        assert raw not in row.replace("\\<img", "").replace("\\[a", "").replace("\\&", "")
    assert main(["check", "sample:tiny-fp32", "--markdown"]) == 0 and "Nothing found" in capsys.readouterr().out
    assert main(["check", "sample:tiny-fp32", "--markdown", "--json"]) == 2 and "either" in capsys.readouterr().err


def test_every_rule_has_a_test_of_finding() -> None:
    with_base = {"missing", "misshapen", "unchanged", "replaced", "extra", "base-mismatch"}
    of_adapters = {rule for _, rule, _, _ in ADAPTER_CASES}
    assert {case[0] for case in CASES} | with_base | of_adapters | {"loads", "empty"} == set(get_args(Rule))


@pytest.mark.parametrize("factor", [1, 2])
def test_a_tensor_in_two_shards(factor: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """transformers loads that of the last shard, whatever the index names: equal bits are a copy, other bits an error."""
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, dtype=BF16)
    model = LlamaForCausalLM(config).bfloat16()
    model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())["weight_map"]
    *_, last = sorted(set(index.values()))
    values = load_file(tmp_path / "model" / last)
    assert index[EMBEDDING] != last and index[FIRST_NORM] != last
    values |= {name: (factor * model.state_dict()[name]).contiguous() for name in (EMBEDDING, FIRST_NORM)}
    save_file(values, tmp_path / "model" / last, {"format": "pt"})
    capsys.readouterr()
    first = {name: f"{index[name].removesuffix('.safetensors')}/{name}" for name in (EMBEDDING, FIRST_NORM)}

    found = check(capsys, tmp_path / "model", status=factor - 1)["findings"]
    (said,) = [each for each in found if each["rule"] == ("stored-twice" if factor == 1 else "index") and EMBEDDING in str(each["tensors"])]
    assert sorted(said["tensors"]) == sorted(first.values())
    assert main(["dtype", str(tmp_path / "model"), "--exact", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    tied = report["coverage"][0]["classes"].get("tied")
    assert (tied and tied["tensors"]) == (2 if factor == 1 else None)
    assert [note["code"] for note in report["notes"]].count("replaced") == 1

    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    with open_checkpoint(str(tmp_path / "model"), Access(local=True)) as checkpoint:
        for tensor in checkpoint.tensors:
            if tensor.name in (EMBEDDING, FIRST_NORM):
                raw = read_range(checkpoint.files[tensor.file], tensor.offset, tensor.nbytes)
                assert raw == loaded[tensor.name].view(torch.uint8).numpy().tobytes()


def test_rows_that_only_the_model_has_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a resized embedding the rows both have are compared: nothing is known of the others, and that is said."""
    base, model = healthy(), healthy(**{UP: normal(128, 64, seed=9).to(BF16) * 0.01 + healthy()[UP]})
    model[EMBEDDING] = torch.cat([model[EMBEDDING], normal(2, 64, seed=5).to(BF16)])
    folders = [str(write(tmp_path / name, values, CONFIG)) for name, values in (("base", base), ("model", model))]
    report = check(capsys, folders[1], "--base", folders[0])
    assert report["findings"] == []
    assert [each["ref"] for each in report["coverage"]] == folders[::-1], "each side once"
    of_model, of_base = report["coverage"]
    assert of_model["share"] < 1 == of_base["share"]
    assert of_model["values_read"] == of_model["parameters"] > of_model["covered"] and of_base["values_read"] is None
    assert main(["check", folders[1], "--base", folders[0]]) == 0
    said = capsys.readouterr().out
    assert "in what was compared, which is not all" in said and "no counterpart" in said


def test_files_that_were_not_opened_are_not_vouched_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pickle of NaN beside sound weights: one remark, whose file the headline counts."""
    folder = write(tmp_path / "model", healthy(), CONFIG)
    torch.save({name: value * torch.nan for name, value in healthy().items()}, folder / "pytorch_model.bin")
    (found,) = check(capsys, folder)["findings"]
    assert (found["rule"], found["level"], found["tensors"]) == ("not-read", "info", ["pytorch_model.bin"])
    assert main(["check", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "Nothing found in what was read, 4 tensors; how transformers" in said
    assert "pytorch_model.bin, by name without weights of its own, was not judged" in said and said.count("pytorch_model.bin") == 1
    assert "Load it before you rely on it" in said and "Nothing needs to change." not in said


def test_repeated_layers_are_a_remark_without_advice_to_tie(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in a passthrough merge of mergekit; a layer that repeats another only in part is something else."""
    values = healthy()
    for layer, seed in ((0, 1), (1, 2), (2, 1), (3, 2)):
        for part, name in enumerate(("mlp.up_proj", "mlp.down_proj", "self_attn.q_proj")):
            values[f"model.layers.{layer}.{name}.weight"] = normal(64, 64, seed=10 * seed + part).to(BF16)
    (found,) = check(capsys, write(tmp_path / "whole", values, CONFIG))["findings"]
    assert (found["rule"], found["level"], found["title"]) == ("stored-twice", "info", "Repeated layers")
    assert found["detail"].startswith("All matrices of 2 layers are byte-for-byte copies of those of earlier layers (2 of 0, 3 of 1)")
    assert "6 matrices, 49,152 bytes" in found["detail"]
    assert "passthrough" in found["detail"] and "tie" not in found["detail"]
    assert {name.split(".")[2] for name in found["tensors"]} == {"2", "3"} and len(found["tensors"]) == 6
    values["model.layers.2.mlp.up_proj.weight"] = normal(64, 64, seed=99).to(BF16)
    part, whole = check(capsys, write(tmp_path / "part", values, CONFIG))["findings"]
    assert (part["level"], len(part["tensors"])) == ("warning", 2) and "tie" not in part["detail"]
    assert (whole["level"], len(whole["tensors"])) == ("info", 3)


def test_training_state_is_named_with_its_size_and_alarms_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As transformers' Trainer saves it next to the weights; names of no weights, whatever is in the files."""
    folder = write(tmp_path / "checkpoint-500", healthy(), CONFIG)
    before = check(capsys, folder)
    for name, values in {"optimizer.pt": 3000, "scheduler.pt": 100, "rng_state.pth": 1000}.items():
        torch.save(torch.zeros(values), folder / name)
    save_file({"exp_avg": torch.zeros(2000)}, folder / "optimizer.safetensors")
    report = check(capsys, folder)
    assert (report["findings"], report["coverage"]) == (before["findings"], before["coverage"])
    (said,) = set(report["notes"]) - set(before["notes"])
    names = ("optimizer.pt", "optimizer.safetensors", "rng_state.pth", "scheduler.pt")  # the largest first
    sizes = [f'"{name}" ({size((folder / name).stat().st_size)})' for name in names]
    assert said.endswith(f"were not read; transformers loads no weights from them: {', '.join(sizes[:3])} and {sizes[3]}.")
    assert main(["check", str(folder)]) == 0 and said in capsys.readouterr().out
    for number in range(4):
        torch.save(torch.zeros(1000), folder / f"rng_state_{number}.pth")
    assert any(note.endswith(" kB).") and "and 3 more files (" in note for note in check(capsys, folder)["notes"])


def test_a_file_that_was_not_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(with_projector(tmp_path / "model"))]) == 0
    said = capsys.readouterr().out
    assert said.count("projector/model.safetensors") == 2 and "left out: 1 file not read." in said


def test_two_models_in_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files with the same names: transformers finds none of them, and nothing is added up in silence."""
    folder = tmp_path / "model"
    LlamaConfig(hidden_size=64).save_pretrained(folder)
    for name in ("a", "b"):
        save_file(healthy(), folder / f"{name}.safetensors")
    report = check(capsys, folder, status=1)
    assert any(each["rule"] == "loads" and 'looks for "model.safetensors"' in each["detail"] for each in report["findings"])
    assert '"a.safetensors" and "b.safetensors" hold tensors of the same names, as several models do' in report["notes"][0]
    assert not any("no folder holds" in note for note in report["notes"])
