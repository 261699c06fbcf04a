"""The rules on what engines trip over: each finds its faults in uploads of several layouts and architectures, and nothing in sound ones."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import pytest
import torch
import transformers

from analyzers.check import CheckRequest, Finding, analyze
from analyzers.check.engine_facts import BUDGET, EngineFacts
from analyzers.check.ignore_list import ignore_list
from analyzers.check.load_rules import companions, load_dtype
from analyzers.check.promises import promises
from analyzers.check.scale_rules import scales
from analyzers.checkpoints import Access, open_checkpoint
from analyzers.checkpoints.local import LocalFile
from tests.cases import few
from tests.check.mutations import saved
from tests.check.quantized_uploads import BF16, F8, LAYOUTS, Values, quantized, write

Rule = Callable[[EngineFacts], Iterator[Finding]]
LOCAL = Access(local=True)
MODELS = ("llama", "phi3", "qwen3-moe")
# Every layout of one model in turn; all of all are exhaustive.
QUANTIZED = few(product(LAYOUTS, MODELS), {3 * number + number % 3 for number in range(len(LAYOUTS))})
RULES = {"scales", "unscaled", "ignore-list", "promises", "keep-fp32", "load-dtype", "companions"}


@cache
def _source(model: str) -> tuple[Values, dict[str, Any]]:
    with TemporaryDirectory() as folder:
        values, config = saved(model, Path(folder))
    wide = {name: value for name, value in values.items() if not value.is_floating_point() or "e_score" in name}
    return {name: value.to(BF16) for name, value in values.items()} | wide, {**config, "dtype": "bfloat16", "num_nextn_predict_layers": 0}


def source(model: str) -> tuple[Values, dict[str, Any]]:
    """Return the tensors of a small model in bf16, and its configuration, which may be changed."""
    values, config = _source(model)
    return dict(values), json.loads(json.dumps(config))


def judged(folder: Path, *rules: Rule, base: Path | None = None) -> list[Finding]:
    """Apply rules to a checkpoint alone, without a pass over its values and without transformers."""
    with ExitStack() as opened:
        checkpoint, *others = (opened.enter_context(open_checkpoint(str(path), LOCAL)) for path in (folder, base) if path)
        facts = EngineFacts(checkpoint, base=EngineFacts(others[0]) if others else None)
        return [found for rule in rules for found in rule(facts)]


def checked(folder: Path, base: Path | None = None) -> dict[str, Finding]:
    """Check a checkpoint as the command does; returns the findings of these rules by code."""
    *_, report = analyze(CheckRequest(model=str(folder), base=str(base) if base else None), LOCAL)
    return {found.code: found for found in getattr(report, "findings", ()) if found.rule in RULES}


def some(values: Values, *ends: str) -> str:
    """Return the first tensor with one of these ends."""
    return next(name for name in values if name.endswith(ends))


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = config["quantization_config"]
    return settings


# --- scales --------------------------------------------------------------------------------------------------------

_OF_LAYOUT = {
    "fp8": "weight_scale_inv", "fp8-channel": "weight_scale", "modelopt": "weight_scale", "nvfp4": "weight_scale", "pack": "weight_scale",
    "int8": "weight_scale", "gptq": "scales", "awq": "scales", "nf4": "weight.absmax", "bnb-int8": "SCB", "torchao": "_weight_scale",
    "mlx": "scales",
}  # fmt: skip
_OTHER_PARTS = {"modelopt": "weight_scale_2", "nvfp4": "weight_global_scale", "gptq": "qzeros", "nf4": "weight.quant_map", "mlx": "biases"}


@pytest.mark.parametrize(("layout", "model"), QUANTIZED)
def test_sound_uploads_and_codes_without_a_part(layout: str, model: str, tmp_path: Path) -> None:
    """The scale of one weight, and every other part that the rest of its layout has."""
    values, config = quantized(*source(model), layout)
    assert judged(write(tmp_path / "sound", values, config), scales, ignore_list, promises, load_dtype, companions) == []
    for number, end in enumerate(filter(None, (_OF_LAYOUT[layout], _OTHER_PARTS.get(layout)))):
        gone = some(values, f"o_proj.{end}")
        left = {name: value for name, value in values.items() if name != gone}
        (found,) = judged(write(tmp_path / str(number), left, config), scales)
        (name,) = found.tensors
        assert (found.code, found.level, found.values["part"]) == ("codes-without-scale", "error", gone)
        assert name.startswith(gone.removesuffix(end)) and name in left


@pytest.mark.parametrize(
    ("layout", "model"), few(product(["fp8", "fp8-channel", "modelopt", "nvfp4"], MODELS), {number * 3 + number % 3 for number in range(4)})
)
def test_scales_that_make_no_weights(layout: str, model: str, tmp_path: Path) -> None:
    """NaN, infinite, subnormal; zero over codes that are not zero, and not over codes that are."""
    for number, (value, kind) in enumerate([(torch.nan, "not_finite"), (torch.inf, "not_finite"), (1e-40, "subnormal"), (0.0, "zero")]):
        values, config = quantized(*source(model), layout)
        end = "input_scale" if kind == "subnormal" and layout in ("fp8-channel", "modelopt") else _OF_LAYOUT[layout]
        name = some(values, f"o_proj.{end}")
        scale = values[name].float().clone()
        scale.view(-1)[:2] = value
        if values[name].dtype == F8 and kind != "zero" and value != torch.nan:
            continue  # E4M3 has no infinity, and its smallest values are not fp32 subnormals
        values[name] = scale.to(values[name].dtype)
        (found,) = judged(write(tmp_path / str(number), values, config), scales)
        assert (found.code, found.tensors) == ("scales-unusable", (name,)) and found.values[kind]
        if kind == "zero" and end != "input_scale":
            assert found.values["codes"]
            codes = some(values, "o_proj.weight", "o_proj.weight_packed")
            raw = values[codes].view(torch.uint8).clone()
            raw[: 1 if scale.ndim > 1 and scale.numel() > 1 and layout != "fp8-channel" else None] = 0
            values[codes] = raw.view(values[codes].dtype)
            assert judged(write(tmp_path / "zeros", values, config), scales) == []


@pytest.mark.parametrize(("layout", "part"), [("modelopt", "up_proj.weight_scale_2"), ("nvfp4", "k_proj.weight_global_scale")])
def test_halves_with_different_global_scales(layout: str, part: str, tmp_path: Path) -> None:
    values, config = quantized(*source("qwen3-moe"), layout)
    values[some(values, part)] *= 1.5
    (found,) = judged(write(tmp_path, values, config), scales)
    assert (found.code, found.level, found.values["modules"]) == ("halves-scaled-apart", "warning", 1)


def test_plain_fp8_weights_need_no_scales(tmp_path: Path) -> None:
    """Weights rounded to fp8, as some uploads of image models are; codes up to 448 are something else."""
    values, config = source("llama")
    plain = {name: value.to(F8) if value.ndim == 2 else value for name, value in values.items()}
    assert judged(write(tmp_path / "plain", plain, config), scales) == []
    bare = {name: (value.float() / value.abs().max() * 448).to(F8) if value.ndim == 2 else value for name, value in values.items()}
    (found,) = judged(write(tmp_path / "bare", bare, config), scales)
    assert found.code == "codes-without-scale"


PARTS: dict[str, dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "gptq": {"qzeros": lambda x: x[:1], "scales": torch.flatten, "g_idx": torch.Tensor.float, "qweight": torch.flatten},
    "awq": {"qweight": torch.flatten, "qzeros": lambda x: x[:, :1], "scales": lambda x: x[:, :7]},
    "mlx": {"biases": lambda x: x[:3], "scales": torch.flatten, "weight": lambda x: x[:, :3]},
    "pack": {"weight_scale": lambda x: x[:, :2], "weight_packed": lambda x: x[:0]},
    "int8": {"weight_scale": lambda x: x[:3]},
    "fp8": {"weight_scale_inv": lambda x: torch.ones(3, 5, 2)},
    "fp8-channel": {"weight_scale": lambda x: x.to(torch.complex64)},
}


@pytest.mark.parametrize(("layout", "part"), [(layout, part) for layout, parts in PARTS.items() for part in parts])
def test_a_part_that_does_not_fit(layout: str, part: str, tmp_path: Path) -> None:
    """One tensor cannot be decoded: it is named, with its parts."""
    values, config = quantized(*source("llama"), layout)
    name = some(values, f"layers.1.mlp.down_proj.{part}")
    values[name] = PARTS[layout][part](values[name])
    (found,) = judged(write(tmp_path, values, config), scales)
    assert (found.code, found.level) == ("scales-that-do-not-fit", "error")
    assert [each.rpartition(".")[0] for each in found.tensors] == [name.removesuffix(f".{part}")]
    assert any(each.endswith(" x ".join(map(str, values[name].shape))) for each in found.values["parts"])  # type: ignore[union-attr]


SETTINGS = [("gptq", {"bits": 8}), ("gptq", {"group_size": 64}), ("gptq", {"bits": 10**30}), ("awq", {"group_size": 8}),
    ("awq", {"bits": 8}), ("mlx", {"bits": 8}), ("mlx", {"group_size": 8}), ("gptq", {"group_size": "16"}), ("mlx", {"bits": [4]}),
    ("pack", {"config_groups": {"a": {"weights": {"num_bits": 8, "group_size": 16}}}})]  # fmt: skip


@pytest.mark.parametrize(("layout", "lie"), SETTINGS)
def test_settings_that_the_shapes_contradict(layout: str, lie: dict[str, Any], tmp_path: Path) -> None:
    values, config = quantized(*source("llama"), layout)
    settings = _settings(config)
    settings |= lie
    (found,) = judged(write(tmp_path / "lie", values, config), scales)
    made = "64 bits for each scale" if layout in ("mlx", "pack") else "4 bits in groups of 16"
    assert (found.code, found.level, found.values["made"]) == ("settings-against-shapes", "error", made)
    settings["dynamic"] = {r"+:.*": {"bits": 4, "group_size": 16}}  # those of single modules count as well
    assert "settings-against-shapes" not in {each.code for each in judged(write(tmp_path / "own", values, config), scales)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_negative_scales_of_magnitudes(layout: str, tmp_path: Path) -> None:
    """fp8 and fp4 divide by the largest magnitude; what fits integers may find a negative scale."""
    values, config = quantized(*source("llama"), layout)
    name = some(values, f"down_proj.{_OF_LAYOUT[layout]}")
    values[name] = (-values[name].float()).to(values[name].dtype)
    expected = [values[name].numel()] if layout in ("fp8", "fp8-channel", "modelopt", "nvfp4", "torchao") else []
    assert [each.values["negative"] for each in judged(write(tmp_path, values, config), scales)] == expected


def test_group_indices_out_of_range_are_a_finding(tmp_path: Path) -> None:
    values, config = quantized(*source("llama"), "gptq")
    name = some(values, "down_proj.g_idx")
    values[name][3] = 99
    *_, report = analyze(CheckRequest(model=str(write(tmp_path, values, config))), LOCAL)
    found = {each.code: each for each in getattr(report, "findings", ()) if each.level == "error"}
    assert found["values-not-readable"].tensors == (name,)


# --- unscaled ------------------------------------------------------------------------------------------------------


def _to_codes(largest: float, dtype: torch.dtype | None) -> Callable[[torch.Tensor], torch.Tensor]:
    def convert(value: torch.Tensor) -> torch.Tensor:
        scaled = value.float() / value.float().abs().amax(-1, keepdim=True).clamp_min(1e-9) * largest
        return scaled.round() if dtype is None else scaled.to(dtype).float()

    return convert


CODES = {
    "fp8 E4M3": _to_codes(448, F8), "fp8 E5M2": _to_codes(57344, torch.float8_e5m2), "int8": _to_codes(127, None),
    "int4": _to_codes(7, None),
}  # fmt: skip


def test_codes_in_place_of_weights(tmp_path: Path) -> None:
    for form, convert in CODES.items():
        values, config = source("llama")
        names = [name for name in values if name.endswith("down_proj.weight")]
        values |= {name: convert(values[name]).to(BF16) for name in names}
        found = checked(write(tmp_path / form, values, config))
        assert found.keys() == {"codes-in-place-of-weights"} and found["codes-in-place-of-weights"].values["form"] == form
        assert sorted(found["codes-in-place-of-weights"].tensors) == sorted(names)


def test_integers_that_are_no_codes(tmp_path: Path) -> None:
    """Ternary weights, positions, one-valued norms, masks, relative indices and counts."""
    values, config = source("llama")
    values |= {name: torch.sign(values[name]) for name in values if name.endswith("down_proj.weight")}
    values["model.positions.weight"] = torch.arange(96.0).reshape(2, 48).to(BF16)
    values["model.relative_index.weight"] = (torch.arange(48)[:, None] - torch.arange(48) + 47).float()
    values["model.norm.weight"] = torch.ones(32, dtype=BF16)
    values["model.token_type_embeddings.weight"] = torch.zeros(2, 64)
    values["model.counts.weight"] = torch.poisson(torch.full((32, 64), 2.0), generator=torch.manual_seed(0))
    assert "codes-in-place-of-weights" not in checked(write(tmp_path, values, config))


# --- ignore-list ---------------------------------------------------------------------------------------------------

_LISTS = [layout for layout, (_, _, key) in LAYOUTS.items() if key]
_EXPRESSIONS = [r"re:.*layers\.1\.self_attn\.o_proj$", "re:model.layers.1.*o_proj"]
_SPELLINGS = dict.fromkeys(("pack", "nvfp4", "int8", "fp8-channel"), _EXPRESSIONS) | {
    "modelopt": ["model.layers.1*", "*layers.1.self_attn.o_proj*"]
}
_WRONG = {
    "pack": "re:.*linear_attn.in_proj_.$", "nvfp4": "re:.*linear_attn.in_proj_.$", "modelopt": "model.layers.*.attention.wq*",
}  # fmt: skip


@pytest.mark.parametrize(("layout", "model"), few(product(_LISTS, MODELS), {3 * number + number % 3 for number in range(len(_LISTS))}))
def test_entries_without_a_tensor_and_plain_layers_without_an_entry(layout: str, model: str, tmp_path: Path) -> None:
    values, config = quantized(*source(model), layout)
    key = LAYOUTS[layout][2]
    listed = _settings(config)[key]
    wrong = ["model.layers.0.self_attn.in_proj_ba", "model.layers.7.mlp.down_proj", *([_WRONG[layout]] if layout in _WRONG else [])]
    _settings(config)[key] = [*listed, *wrong]
    (found,) = judged(write(tmp_path / "entries", values, config), ignore_list)
    assert (found.code, found.level, found.tensors) == ("ignored-without-tensor", "warning", tuple(wrong))
    plain = source(model)[0]
    name = some(plain, "layers.1.self_attn.o_proj.weight")
    values = {each: value for each, value in values.items() if not each.startswith(name.removesuffix("weight"))} | {name: plain[name]}
    spellings = _SPELLINGS.get(layout, ["o_proj", "model.layers.*.self_attn.o_proj"])
    for number, entry in enumerate(["", name.removesuffix(".weight"), "model.layers.1.self_attn", *spellings]):
        _settings(config)[key] = [*listed, entry]
        found_plain = [each for each in judged(write(tmp_path / str(number), values, config), ignore_list) if each.code.startswith("plain")]
        assert [each.tensors for each in found_plain] == ([] if entry else [(name,)]), entry


def test_lists_of_mlx_gptqmodel_and_hf_quant_config(tmp_path: Path) -> None:
    values, config = quantized(*source("llama"), "mlx")
    config["quantization"] |= {"model.layers.0.mlp.down_proj": {"group_size": 16, "bits": 8}, "model.layers.9.mlp.down_proj": False}
    (found,) = judged(write(tmp_path / "mlx", values, config), ignore_list)
    assert found.tensors == ("model.layers.9.mlp.down_proj",)
    values, config = quantized(*source("llama"), "gptq")
    _settings(config)["dynamic"] = {r"-:.*\.mlp\.zorg.*": {}, r"+:.*down_proj.*": {"bits": 8}}
    (found,) = judged(write(tmp_path / "gptq", values, config), ignore_list)
    assert found.tensors == (r"-:.*\.mlp\.zorg.*",)
    values, config = quantized(*source("llama"), "modelopt")
    del config["quantization_config"]
    settings = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "model.layers.0.mlp.zorg*"]}}
    (found,) = judged(write(tmp_path / "hf", values, config, hf_quant_config=settings), ignore_list)
    assert found.tensors == ("model.layers.0.mlp.zorg*",)


_LAYERS = [f"model.layers.{number}" for number in range(3)]
# Lists as published models have them; all of the attention, or nothing but the router and the head, stays plain.
PUBLISHED: list[tuple[str, bool, Any]] = [
    ("fp8", False, None),  # DeepSeek
    ("fp8", False, ["lm_head", *(f"{layer}.{part}" for layer in _LAYERS for part in ("input_layernorm", "mlp.gate"))]),  # Qwen
    ("fp8", True, ["lm_head", *(f"{layer}.self_attn" for layer in _LAYERS), *(f"{layer}.mlp.gate" for layer in _LAYERS)]),
    ("modelopt", True, ["*self_attn*", "lm_head", "*mlp.gate*"]), ("modelopt", True, ["model.layers.*.self_attn*", "*router*", "mtp*"]),
    ("modelopt", False, ["lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate", "model.layers.2.mlp.gate"]),
    ("nvfp4", True, ["re:.*lm_head", "re:.*self_attn.*", "re:.*mlp.gate$", "re:visual.*"]), ("pack", False, ["lm_head", "re:.*gate$"]),
    ("awq", False, ["gate"]), ("awq", True, ["self_attn", "mlp.gate"]), ("awq", False, None), ("awq", True, ["attn", "gate."]),
    ("nf4", False, ["lm_head"]), ("nf4", True, ["self_attn", "lm_head"]), ("gptq", False, None),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "attention", "entries"), PUBLISHED, ids=range(len(PUBLISHED)))
def test_lists_of_published_models(layout: str, attention: bool, entries: Any, tmp_path: Path) -> None:
    plain, config = source("qwen3-moe-wide")
    values, config = quantized(plain, config, layout)
    if attention:
        values = {name: value for name, value in values.items() if "self_attn" not in name}
        values |= {name: value for name, value in plain.items() if "self_attn" in name}
    key = LAYOUTS[layout][2]
    settings = {name: value for name, value in _settings(config).items() if name != key}
    config["quantization_config"] = settings | ({key: entries} if key else {})
    assert judged(write(tmp_path, values, config), scales, ignore_list) == []


def test_gpt_oss(tmp_path: Path) -> None:
    values, config = source("qwen3-moe-wide")
    stored = {name: value for name, value in values.items() if ".experts." not in name}
    for layer, (part, rows) in product(_LAYERS, (("gate_up_proj", 64), ("down_proj", 32))):
        stored[f"{layer}.mlp.experts.{part}_blocks"] = torch.randint(0, 256, (4, rows, 2, 16), dtype=torch.uint8)
        stored[f"{layer}.mlp.experts.{part}_scales"] = torch.randint(110, 120, (4, rows, 2), dtype=torch.uint8)
        stored[f"{layer}.mlp.experts.{part}_bias"] = torch.randn(4, rows).to(BF16)
    names = ["model.layers.*.self_attn", "model.layers.*.mlp.gate", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": names}
    assert judged(write(tmp_path / "sound", stored, config), scales, ignore_list, promises) == []
    gone = f"{_LAYERS[1]}.mlp.experts.down_proj_scales"
    del stored[gone]
    (found,) = judged(write(tmp_path / "lost", stored, config), scales)
    assert (found.tensors, found.values["part"]) == ((gone.replace("scales", "blocks"),), gone)


HOSTILE: list[Any] = [
    [f"model.layers.{number}.mlp.zorg" for number in range(100_000)],
    [rf"re:(a*)*{number}b" for number in range(2_000)],
    ["re:" + "(" * 200 + "a" + ")" * 200, "re:a{1000000000}", "re:(", "re:(?P<", "*" * 400, "x" * 10_000],
    [r"re:(.*.*.*.*.*)*$x", r"re:(\w+\.?)+!"],
    {"a": ["b"]}, 7, "lm_head", [None, {}, ["x"], 3, "", "."], [{"nested": {}}] * 100,
]  # fmt: skip


@pytest.mark.parametrize("entries", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_lists_are_bounded(entries: Any, tmp_path: Path) -> None:
    values, config = quantized(*source("qwen3-moe"), "pack")
    config["quantization_config"] |= {"ignore": entries, "config_groups": entries, "quant_method": entries, "bits": entries}
    folder, start = write(tmp_path, values, config), process_time()
    findings = judged(folder, scales, ignore_list, promises, load_dtype, companions)
    assert process_time() - start < 10
    assert all(len(found.detail) < 1000 and "\n" not in found.detail for found in findings)


@pytest.mark.parametrize("beyond", [["x" * 501], [f"model.layers.{number}.zorg" for number in range(10_001)]])
def test_entries_beyond_the_limits_are_counted(beyond: list[str], tmp_path: Path) -> None:
    values, config = quantized(*source("llama"), "pack")
    _settings(config)["ignore"] += beyond
    with open_checkpoint(str(write(tmp_path, values, config)), LOCAL) as checkpoint:
        facts = EngineFacts(checkpoint)
        found = [each.code for each in ignore_list(facts)]
    (note,) = facts.notes
    assert (note.code, note.values["all"]) == ("entries-not-tried", 1 + len(beyond)) and note.values["entries"] == (2 if found else 1)


# --- promises ------------------------------------------------------------------------------------------------------

PROMISES: list[tuple[dict[str, Any], str]] = [
    ({"num_nextn_predict_layers": 1}, "1 next-token layer"), ({"mtp_num_hidden_layers": 2}, "2 next-token layers"),
    ({"text_config": {"num_mtp_modules": 1}}, "1 next-token layer"), ({"num_hidden_layers": 5}, "5 layers"),
    ({"text_config": {"num_hidden_layers": 4}, "num_hidden_layers": None}, "4 layers"),
    ({"vision_config": {"depth": 2}}, "a tower for vision"), ({"audio_config": {"depth": 2}}, "a tower for audio"),
    ({"thinker_config": {"audio_config": {"depth": 2}}}, "a tower for audio"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(PROMISES)))
def test_promises_that_are_not_kept(number: int, tmp_path: Path) -> None:
    values, config = source(MODELS[number % len(MODELS)])
    settings, promised = PROMISES[number]
    (found,) = judged(write(tmp_path, values, config | settings), promises)
    assert (found.code, found.level, found.values["promised"]) == ("parts-missing", "warning", promised)


@pytest.mark.parametrize("model", few(["mixtral", "qwen3-moe", "deepseek-v3"], {1}))
def test_experts_that_are_promised(model: str, tmp_path: Path) -> None:
    values, config = source(model)
    assert judged(write(tmp_path / "sound", values, config), promises) == []
    key = next(key for key in ("num_local_experts", "num_experts", "n_routed_experts") if config.get(key))
    states = {
        "more": (values, config | {key: 6}, "6 experts"),
        "fewer": ({name: value for name, value in values.items() if "experts.3." not in name}, config, "4 experts"),
        "none": ({name: value for name, value in values.items() if "expert" not in name and "moe" not in name}, config, "4 experts"),
    }
    for name, (stored, stated, promised) in states.items():
        (found,) = judged(write(tmp_path / name, stored, stated), promises)
        assert (found.values["promised"], found.values["found"] == "none") == (promised, name == "none")


def test_promises_that_are_kept(tmp_path: Path) -> None:
    """Heads under their own name or as further layers, and towers."""
    values, config = source("llama")
    row = torch.ones(32, dtype=BF16)
    for number, name in enumerate(["mtp.fc.weight", "model.layers.3.eh_proj.weight", "model.mtp_layers.0.norm.weight"]):
        stored = values | {name: row}
        assert judged(write(tmp_path / str(number), stored, config | {"num_nextn_predict_layers": 1}), promises) == []
    stored = values | {"visual.patch_embed.proj.weight": row, "audio_tower.conv.weight": row}
    towers = {"vision_config": {"depth": 1}, "audio_config": {"layers": 1}}
    assert judged(write(tmp_path / "towers", stored, config | towers), promises) == []


def test_a_shard_that_was_dropped_before_the_index_was_rebuilt(tmp_path: Path) -> None:
    values, config = source("llama")
    names = list(values)
    parts = {f"model-0000{number + 1}-of-00003.safetensors": names[number::3] for number in range(3)}
    for kept, expected in ((3, []), (2, ["shards-missing"])):
        folder = tmp_path / str(kept)
        weight_map: dict[str, str] = {}
        for file in list(parts)[:kept]:
            write(folder, {name: values[name] for name in parts[file]}, config)
            (folder / "model.safetensors").rename(folder / file)
            weight_map |= dict.fromkeys(parts[file], file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        assert [found.code for found in judged(folder, promises)] == expected


# --- keep-fp32, load-dtype, companions -------------------------------------------------------------------------------


@pytest.mark.parametrize("model", few(["deepseek-v3", "glm4-moe", "dots1"], {0}))
def test_what_transformers_keeps_in_fp32(model: str, tmp_path: Path) -> None:
    values, config = source(model)
    biases = {name: torch.linspace(6.8, 7.1, value.numel()) for name, value in values.items() if "e_score" in name}
    good = write(tmp_path / "good", values | biases, config)
    bad = write(tmp_path / "bad", values | {name: value.to(BF16) for name, value in biases.items()}, config)
    assert checked(good).keys() == set()
    found = checked(bad)["kept-in-fp32-but-stored-narrower"]
    assert sorted(found.tensors) == sorted(biases) and int(str(found.values["distinct"])) <= 4
    found = checked(bad, good)["rounded-though-kept-in-fp32"]
    assert (found.values["before"], sorted(found.tensors)) == (4, sorted(biases))


DTYPES: list[tuple[dict[str, Any], list[list[str]]]] = [
    ({"dtype": "bfloat16"}, []), ({"torch_dtype": "bfloat16"}, []), ({"dtype": "bfloat16", "torch_dtype": "bf16"}, []),
    ({}, [["no dtype"]]), ({"dtype": "float32"}, [["float32"]]), ({"torch_dtype": "float16"}, [["float16"]]),
    ({"dtype": "bfloat16", "torch_dtype": "float32"}, [["bfloat16", "float32"]]),
]  # fmt: skip


@pytest.mark.parametrize(("stated", "expected"), DTYPES)
def test_the_dtype_in_which_it_loads(stated: dict[str, Any], expected: list[list[str]], tmp_path: Path) -> None:
    values, config = source("llama")
    del config["dtype"]
    found = judged(write(tmp_path, values, config | stated), load_dtype)
    assert [list(each.values["stated"]) for each in found] == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("wide", few(["lm_head.weight", "model.norm.weight", "model.embed_tokens.weight"], {0, 1}))
def test_the_dtype_is_the_one_that_transformers_takes(wide: str, tmp_path: Path) -> None:
    values, config = source("llama")
    del config["dtype"]
    folder = write(tmp_path, values | {wide: values[wide].float()}, config)
    (found,) = judged(folder, load_dtype)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert found.values["loaded"] == str(model.dtype).removeprefix("torch.")


@pytest.mark.parametrize("model", few(["llama", "gpt2", "mixtral"], {1}))
def test_rows_of_tokens_that_were_never_trained(model: str, tmp_path: Path) -> None:
    values, config = source(model)
    name = some(values, "embed_tokens.weight", "wte.weight")
    config |= {"eos_token_id": 90, "pad_token_id": 0}
    assert judged(write(tmp_path / "sound", values, config), companions) == []
    for number, (row, first) in enumerate([(values[name][95], 88), (torch.zeros(32, dtype=BF16), 90)]):
        table = values[name].clone()
        table[first : 92 if number == 0 else 91] = row
        (found,) = judged(write(tmp_path / str(number), values | {name: table}, config), companions)
        assert (found.code, found.values["token"]) == ("tokens-never-trained", "eos_token_id 90")
    added = {"93": {"content": "<|im_start|>"}, "94": {"content": "<|im_end|>"}, "92": {"content": "<|unused|>"}}
    template = {"chat_template": "<|im_start|>{{ text }}<|im_end|>", "added_tokens_decoder": added}
    table = values[name].clone()
    table[92:95] = table[92].clone()
    (found,) = judged(write(tmp_path / "template", values | {name: table}, config, tokenizer_config=template), companions)
    assert (found.values["tokens"], found.values["rows"]) == (2, 3)


def test_files_that_differ_from_those_of_the_base(tmp_path: Path) -> None:
    values, config = source("llama")
    config |= {"eos_token_id": 7}
    template: dict[str, Any] = {"chat_template": "{{ text }}", "eos_token": "</s>"}
    files: dict[str, Any] = {"generation_config": {"eos_token_id": 7}, "tokenizer_config": template}
    base, same = write(tmp_path / "base", values, config, **files), write(tmp_path / "same", values, config, **files)
    assert judged(same, companions, base=base) == []
    other = write(tmp_path / "other", values, config | {"eos_token_id": 9}, **files)
    (found,) = judged(other, companions, base=base)
    assert (found.code, found.level, found.values["differ"]) == ("companions-differ", "info", ("eos_token_id 7 -> 9",))
    lost = write(tmp_path / "lost", values, config, tokenizer_config={"eos_token": "</s>"})
    (found,) = judged(lost, companions, base=base)
    assert (found.level, found.values["differ"]) == ("warning", ("chat_template 10 -> none", "generation True -> none"))


# --- all of them ---------------------------------------------------------------------------------------------------


def test_few_bytes_are_read_of_a_large_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty layers of experts with three scales each, whose values are never read whole."""
    values, config = quantized(*source("llama"), "modelopt")
    stem = "model.layers.0.mlp.down_proj."
    parts = {name.removeprefix(stem): value for name, value in values.items() if name.startswith(stem)}
    for layer, expert, (name, value) in product(range(60), range(16), parts.items()):
        values[f"model.layers.{layer}.mlp.experts.{expert}.down_proj.{name}"] = value
    folder = write(tmp_path, values, config)
    read = list[int]()

    def counted(self: LocalFile, offset: int, buffer: memoryview, original: Any = LocalFile.read_into) -> None:
        read.append(len(buffer))
        original(self, offset, buffer)

    with open_checkpoint(str(folder), LOCAL) as checkpoint:
        monkeypatch.setattr(LocalFile, "read_into", counted)
        facts = EngineFacts(checkpoint)
        rules = (scales, ignore_list, promises, load_dtype, companions)
        assert not [found for rule in rules for found in rule(facts) if found.level == "error"]
    assert 0 < sum(read) <= BUDGET and len(read) < 200
