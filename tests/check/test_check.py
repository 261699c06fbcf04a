"""Check: each rule on a checkpoint that breaks it and on one that does not, exit statuses, and what is printed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from analyzers.__main__ import main
from analyzers.checkpoints import Access, open_checkpoint, read_range
from analyzers.language_models.samples import sample_folder
from tests.dtype.checkpoints import normal, through, write
from tests.dtype.quantized import integers, weights
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


def sharded(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Two shards; returns their names, and the map of a right index."""
    folder.mkdir()
    files = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    values = healthy()
    for file, names in zip(files, ((UP, NORM), (EMBEDDING, HEAD)), strict=True):
        save_file({name: values[name] for name in names}, folder / file)
    return files, {UP: files[0], NORM: files[0], EMBEDDING: files[1], HEAD: files[1]}


def indexed(folder: Path, **changes: Any) -> Path:
    """Two shards with an index that is changed: another file for a tensor, or a tensor left out."""
    files, weight_map = sharded(folder)
    if changes.get("wrong"):
        weight_map[EMBEDDING] = files[0]
    if changes.get("short"):
        del weight_map[EMBEDDING]
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
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


def with_archive(folder: Path) -> Path:
    """Weights in a format that is not read."""
    write(folder, HEALTHY, CONFIG)
    (folder / "model.npz").write_bytes(b"PK")
    return folder


def with_pickle_of_nan(folder: Path) -> Path:
    """A pickle beside sound weights, which nobody opens."""
    write(folder, HEALTHY, CONFIG)
    torch.save({name: value * torch.nan for name, value in healthy().items()}, folder / "pytorch_model.bin")
    return folder


def written(values: Values, config: dict[str, Any] = CONFIG) -> Callable[[Path], Path]:
    """The function that writes a checkpoint into a folder."""
    return lambda folder: write(folder, values, config)


Case = tuple[str, str, str, Callable[[Path], Path], int, list[str]]
HEALTHY = healthy()
INT4 = torch.from_numpy(integers(weights(128, 64), 4, 32, False, torch.float32)).float().to(BF16)
TWICE = HEALTHY | {HEAD: HEALTHY[EMBEDDING].clone()}
NAN, DTYPE, WIDER = "weights-not-finite", "config-states-another-dtype", "stored-wider-than-needed"
CASES: list[Case] = [
    ("non-finite", NAN, "error", written(HEALTHY | {UP: with_value(HEALTHY[UP], torch.nan)}), 0, [UP]),
    ("non-finite", NAN, "error", written(HEALTHY | {NORM: with_value(HEALTHY[NORM], -torch.inf)}), 0, [NORM]),
    ("index", "index-disagrees-with-files", "error", lambda folder: indexed(folder, wrong=True), 0, []),
    ("index", "index-disagrees-with-files", "error", lambda folder: indexed(folder, short=True), 0, []),
    ("not-read", "files-not-read", "warning", with_projector, 0, ["projector/model.safetensors"]),
    ("not-read", "files-not-read", "warning", with_archive, 0, ["model.npz"]),
    ("not-read", "copies-not-read", "info", with_pickle_of_nan, 0, ["pytorch_model.bin"]),
    ("upcast", WIDER, "warning", written(wide(HEALTHY), {"dtype": "float32"}), 2 * 641 * 64, [*HEALTHY]),
    ("stored-twice", "stored-twice", "warning", written(TWICE), 0, [HEAD]),
    ("stored-twice", "stored-twice", "warning", written(TWICE, {"tie_word_embeddings": True}), 2 * 256 * 64, [HEAD]),
    ("config-dtype", DTYPE, "warning", written(HEALTHY, {**CONFIG, "dtype": "float16"}), 0, []),
    ("untouched", "mostly-one-value", "warning", written(HEALTHY | {NORM: torch.ones(64, dtype=BF16)}), 0, [NORM]),
    ("untouched", "mostly-one-value", "warning", written(HEALTHY | {NORM: with_value(torch.ones(64, dtype=BF16), 2)}), 0, [NORM]),
    ("zero-tensor", "tensors-of-zeros", "warning", written(HEALTHY | {UP: torch.zeros(128, 64, dtype=BF16)}), 0, [UP]),
    ("pickled", "pickled-weights", "warning", pickled, 0, ["pytorch_model.bin"]),
    ("fp16-overflow", "infinite-in-fp16", "info", written(HEALTHY | {UP: with_value(HEALTHY[UP], 70000)}), 0, [UP]),
    ("fossil-rows", "rows-not-updated", "info", fossil, 0, [EMBEDDING]),
    ("grid", "values-on-a-grid", "info", written(HEALTHY | {UP: INT4}), 128 * 64 * 16 // 8 - 128 * 64 * 9 // 16, [UP]),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "code", "level", "build", "saving", "tensors"), CASES)
def test_a_rule_finds(
    rule: str,
    code: str,
    level: str,
    build: Callable[[Path], Path],
    saving: int,
    tensors: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = check(capsys, build(tmp_path / "in"), status=int(level == "error"))
    (found,) = done["findings"]
    assert (found["rule"], found["code"], found["level"]) == (rule, code, level)
    assert (found["saving_bytes"], done["saving_bytes"]) == (saving, saving) and sorted(found["tensors"]) == sorted(tensors)


def test_no_rule_finds_anything_in_a_healthy_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor where a bias is zero, as biases start, nor in native fp32 with a norm of ones that bf16 would hold: beyond `untouched`."""
    model = write(tmp_path / "in", HEALTHY | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64, dtype=BF16)}, CONFIG)
    report, shards = check(capsys, model), indexed(tmp_path / "sharded", count=sum(value.nbytes for value in HEALTHY.values()))
    assert report["findings"] == check(capsys, shards)["findings"] == []
    assert (report["answer"]["code"], report["advice"]["code"], report["loading_judged"]) == ("nothing-found", "try-loading", False)
    wrong = check(capsys, write(tmp_path / "wrong", HEALTHY, {**CONFIG, "dtype": "float16"}))  # with findings, it is said too
    assert all("How it loads was not judged" in each["answer"]["text"] for each in (report, wrong))
    native = {UP: normal(128, 64), EMBEDDING: normal(256, 64, seed=1), NORM: torch.ones(64)}
    done = check(capsys, write(tmp_path / "native", native, {**CONFIG, "dtype": "float32"}))
    assert [each["rule"] for each in done["findings"]] == ["untouched"]
    report = check(capsys, "sample:tiny-fp32")
    assert (report["findings"], report["answer"]["code"]) == ([], "nothing-found")


@pytest.mark.parametrize("dtype", ["bf16", "torch.bfloat16", "BFloat16", "torch.FP32", "half"])
def test_other_spellings_of_a_dtype_are_understood(dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = check(capsys, write(tmp_path / "in", HEALTHY, {**CONFIG, "dtype": dtype}))["findings"]
    assert [each["code"] for each in found] == ([] if "bf" in dtype.lower() else [DTYPE])


def test_codes_are_compared_with_a_base_in_any_dtype(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Values in fp4, of no dtype that safetensors has, against the same values in fp32: nothing was trained."""
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = torch.randint(1, 8, (64, 2, 32), generator=torch.manual_seed(1))
    packed = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
    name = "model.layers.0.mlp.experts.down_proj"
    model = {f"{name}_blocks": packed, f"{name}_scales": torch.full((64, 2), 127, dtype=torch.uint8)}
    base = write(tmp_path / "base", {name: levels[codes].reshape(64, 64)})
    found = check(capsys, write(tmp_path / "model", model), "--base", str(base), status=1)
    assert {each["rule"] for each in found["findings"] if each["level"] == "error"} == {"unchanged"}


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
    untied = check(capsys, write(tmp_path / "untied", tied, {**CONFIG, "dtype": "float32"}))
    assert before["saving_bytes"] - untied["saving_bytes"] == 2 * 256 * 64, "a copy that is kept is narrowed, and counts once"
    assert main(["shrink", str(model), "--out", str(tmp_path / "out"), "--json"]) == 0
    shrunk = json.loads(capsys.readouterr().out)
    assert before["saving_bytes"] == shrunk["bytes_before"] - shrunk["bytes_after"] > 0
    after = check(capsys, tmp_path / "out")
    assert (after["saving_bytes"], after["checkpoint"]["bytes"]) == (0, shrunk["bytes_after"])


def test_against_a_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = str(write(tmp_path / "base", HEALTHY, CONFIG))

    def rules(values: Values, status: int) -> dict[str, tuple[str, list[str]]]:
        done = check(capsys, write(tmp_path / f"tuned{len(list(tmp_path.iterdir()))}", values, CONFIG), "--base", base, status=status)
        return {each["code"]: (each["level"], each["tensors"]) for each in done["findings"]}

    tuned = HEALTHY | {UP: with_value(HEALTHY[UP], 0.5)}
    extra = {"model.layers.1.mlp.up_proj.weight": normal(8, 8).to(BF16)}
    assert rules(tuned, 0) == {}
    assert rules(wide(HEALTHY), 1).keys() == {"unchanged-from-the-base", WIDER, DTYPE}, "a conversion is no training"
    nudged = wide(HEALTHY)
    nudged[UP] = nudged[UP] * (1 + 2.0**-20)
    assert "unchanged-from-the-base" not in rules(nudged, 0), "it was trained, by less than bf16 can see"
    assert rules({name: value for name, value in tuned.items() if name != NORM}, 1) == {"tensors-missing": ("error", [NORM])}
    narrower = tuned | {UP: normal(64, 32).to(BF16), NORM: with_value(HEALTHY[NORM], 3)}
    assert rules(narrower, 1) == {"shapes-differ-from-the-base": ("error", [UP])}
    assert rules(tuned | extra, 0) == {"extra-tensors": ("info", [*extra])}


def test_a_base_of_another_architecture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write(tmp_path / "other", {"transformer.h.0.attn.c_attn.weight": normal(64, 192).to(BF16)}, {"model_type": "gpt2"})
    assert main(["check", "sample:tiny-bf16", "--base", str(other)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "Traceback" not in err
    assert main(["check", str(other), "--base", str(other)]) == 2 and "the base is the model itself" in capsys.readouterr().err.lower()


MISMATCHES = {"card-names-another-base", "card-names-an-unrelated-base"}


def test_the_card_names_another_base(hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def add(name: str, sample: str, card: str = "") -> None:
        files = {path.name: path.read_bytes() for path in sample_folder(sample).iterdir()}
        hub.add(name, files | {"README.md": card.encode(), "config.json": b"{}"})  # transformers is not asked

    add("org/base", "tiny-bf16")
    add("org/other", "tiny-fp16-mixed")
    add("org/right", "tiny-tuned", "---\nbase_model: org/base\n---\n")
    add("org/wrong", "tiny-tuned", "---\nbase_model: org/other\n---\n")
    add("org/gone", "tiny-tuned", "---\nbase_model: org/missing\n---\n")
    values = load_file(sample_folder("tiny-bf16") / "model.safetensors")
    anew = {name: normal(*value.shape, seed=seed).to(BF16) for seed, (name, value) in enumerate(values.items())}
    save_file(anew, tmp_path / "model.safetensors")
    card = b"---\nbase_model: org/base\n---\n"
    hub.add("org/stranger", {"model.safetensors": tmp_path / "model.safetensors", "README.md": card, "config.json": b"{}"})
    found = {name: check(capsys, name, "--base", "org/base") for name in ("org/right", "org/wrong", "org/gone")}
    found["org/stranger"] = check(capsys, "org/stranger", "--base", "org/other")
    codes = {name: {each["code"]: each["values"] for each in done["findings"]} for name, done in found.items()}
    assert not codes["org/right"].keys() & MISMATCHES and not codes["org/gone"].keys() & MISMATCHES
    assert codes["org/wrong"]["card-names-another-base"] == {"stated": ["org/other"], "parents": ["org/base"]}
    assert codes["org/stranger"]["card-names-an-unrelated-base"] == {"stated": ["org/base"]}
    assert found["org/gone"]["notes"][-1]["code"] == "card-not-compared"


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("scaled-from-the-base", {UP: lambda values: values * 0.5}),
        ("scaled-from-the-base", {UP: lambda values: values * 1.5}),
        ("scaled-from-the-base", {NORM: lambda values: values - 1}),
        ("reordered-from-the-base", {UP: lambda values: values.flip(0)}),
        ("other-values-than-the-base", {UP: lambda values: normal(128, 64, seed=9)}),
    ],
)
@pytest.mark.parametrize("trained", [False, True])
def test_what_lost_its_relation_to_the_base(
    code: str, change: dict[str, Callable[[torch.Tensor], torch.Tensor]], trained: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One tensor of a copy, and of a fine-tune, in which other values are all that is left of another order."""
    start = HEALTHY | {NORM: (1 + normal(64, scale=0.1)).to(BF16)}
    base = str(write(tmp_path / "base", start, CONFIG))
    step = 0.01 if trained else 0
    values = {name: value.float() + step * value.float().std() * normal(*value.shape, seed=5, scale=1) for name, value in start.items()}
    values |= {name: made(values[name]) for name, made in change.items()}
    model = write(tmp_path / "in", {name: value.to(BF16) for name, value in values.items()}, CONFIG)
    done = check(capsys, model, "--base", base)
    (found,) = (each for each in done["findings"] if each["rule"] == "replaced")
    expected = "other-values-than-the-base" if trained and code.startswith("reordered") else code
    assert (found["code"], found["level"], found["tensors"]) == (expected, "warning", [*change])
    assert done["answer"]["values"]["state"] != "as-claimed"


def test_a_base_that_is_another_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = str(write(tmp_path / "base", HEALTHY, CONFIG))
    other = write(tmp_path / "other", {name: normal(*value.shape, seed=7).to(BF16) for name, value in HEALTHY.items()}, CONFIG)
    assert "unrelated-to-the-base" in {each["code"] for each in check(capsys, other, "--base", base)["findings"]}


def test_layers_in_another_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def layers(*seeds: int) -> Values:
        names = ("mlp.up_proj", "mlp.down_proj", "self_attn.q_proj")
        parts = [(layer, part, normal(64, 64, seed=10 * seed + part)) for layer, seed in enumerate(seeds) for part in range(3)]
        return healthy() | {f"model.layers.{layer}.{names[part]}.weight": value.to(BF16) for layer, part, value in parts}

    base, model = (str(write(tmp_path / name, layers(*seeds), CONFIG)) for name, seeds in (("base", (1, 2, 3)), ("in", (2, 3, 1))))
    (found,) = check(capsys, model, "--base", base)["findings"]
    assert (found["rule"], found["code"], found["values"]) == ("replaced", "layers-moved", {"base": base, "layer": 0, "here": 2})


def test_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warned = str(write(tmp_path / "warned", wide(HEALTHY), {**CONFIG, "dtype": "float32"}))
    broken = str(write(tmp_path / "broken", HEALTHY | {UP: with_value(HEALTHY[UP], torch.nan)}, CONFIG))
    for model, expected in ((warned, (0, 1, 0)), (broken, (1, 1, 0))):
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
    assert "weights-not-finite" not in row and "non-finite" in row
    for raw in ("<img", "@e", "[a]", "https://", "#1", "www.", "&#64", "GH-"):
        assert raw not in row.replace("\\<img", "").replace("\\[a", "").replace("\\&", "")
    assert main(["check", "sample:tiny-fp32", "--markdown", "--json"]) == 2 and "either" in capsys.readouterr().err


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
    assert report["answer"]["code"] == "nothing-in-part"


def test_adapters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone its own weights are judged, and nothing is said of loading; a base is compared with BASE+ADAPTER."""
    alone = check(capsys, "sample:tiny-adapter")
    assert (alone["answer"]["code"], alone["loading_judged"]) == ("nothing-found", False)
    merged = check(capsys, "sample:tiny-bf16+sample:tiny-adapter", "--base", "sample:tiny-bf16")
    assert {each["rule"] for each in merged["findings"]} == {"untouched"} and merged["loading_judged"]
    assert main(["check", "sample:tiny-adapter", "--base", "sample:tiny-bf16"]) == 2
    assert "BASE+ADAPTER" in capsys.readouterr().err
    capsys.readouterr()
