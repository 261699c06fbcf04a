"""Quantized files against their source: a copy is one, whatever made it; a tensor that is not the source's is named, and no other."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cases import few
from tests.layouts.relayouts import rotary_rows
from tests.parents import quantized_files as files
from tests.parents.checkpoints import BF16, F32, Folder, Tensors, asked, model, tuned

SOURCE = model(10, width=128, layers=3)
VICTIM, OTHER = "model.layers.1.mlp.up_proj.weight", "model.layers.2.mlp.up_proj.weight"
FORMATS: dict[str, Callable[..., str]] = {
    "fp8": files.fp8,
    "NVFP4": files.nvfp4,
    "MLX": files.mlx,
    "MLX, 8 bits": partial(files.mlx, bits=8),
    "GPTQ": files.gptq,
    "GPTQ, nearest": partial(files.gptq, calibrated=False),
    "GPTQ, 2 bits": partial(files.gptq, bits=2),
    "AWQ": files.awq,
    "Q8_0": files.ggml,
    "Q4_0": partial(files.ggml, kind="Q4_0"),
}
CALIBRATED = ("GPTQ", "GPTQ, 2 bits", "AWQ")


def _overwritten(x: torch.Tensor) -> torch.Tensor:
    """Overwrite a block of 32 rows and 64 columns by values of the same size."""
    damaged = x.clone()
    damaged[64:96, 64:128] = x[128:160, :64]
    return damaged


DAMAGES: dict[str, Callable[[Tensors], torch.Tensor]] = {
    "another layer's": lambda source: source[OTHER],
    "an older step's": lambda source: tuned(source, 0.2, 9)[VICTIM],
    "a block overwritten": lambda source: _overwritten(source[VICTIM]),
    "rows shifted": lambda source: source[VICTIM].roll(1, 0),
    "scaled": lambda source: 1.37 * source[VICTIM].to(F32),
    "signs flipped": lambda source: -source[VICTIM],
}
RELATIONS = {"an older step's": "changed", "scaled": "affine", "signs flipped": "affine"}
UNSEEN = {("an older step's", name) for name in CALIBRATED}  # calibration moves values as far
CASES = [(damage, name) for damage in DAMAGES for name in FORMATS if (damage, name) not in UNSEEN]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return Folder(tmp_path_factory.mktemp("source")).write("source", SOURCE)


@pytest.mark.parametrize("mode", ["quick", "exact"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_copy(name: str, mode: Any, source: str, tmp_path: Path) -> None:
    report = asked(FORMATS[name](tmp_path / "copy", SOURCE), source, mode=mode)
    codes = dict.fromkeys(("GPTQ", "GPTQ, 2 bits"), "quantized-or-trained")
    assert (report.verdict, report.parents, report.answer.code) == ("quantized-copy", (source,), codes.get(name, "quantized"))
    assert {row.relation for row in report.conversion} <= {"rounded", "equal", "affine"}
    copy = report.quantized
    assert copy is not None and not copy.not_source and len(copy.tensors) == 12
    assert copy.error is not None and copy.error_of_nearest is not None and copy.ratio is not None and copy.within_half_step is not None
    assert copy.channels_scaled == (name == "AWQ") and (copy.tensors_read, copy.tensors_stored) == (12, 12)
    assert not copy.channels_scaled or copy.ratio == pytest.approx(1, abs=0.05)  # once the factors are undone
    assert copy.calibrated == (name in CALIBRATED) and (name in CALIBRATED or (copy.ratio < 1.3 and copy.within_half_step > 0.8))


@pytest.mark.parametrize(("damage", "name"), few(CASES, range(0, len(CASES), 5), [f"{damage}-{name}" for damage, name in CASES]))
def test_the_damaged_tensor_is_named_and_no_other(damage: str, name: str, source: str, tmp_path: Path) -> None:
    state = SOURCE | {VICTIM: DAMAGES[damage](SOURCE)}
    for mode in ("exact", "quick"):
        report = asked(FORMATS[name](tmp_path / "copy", state), source, mode=mode)
        assert report.verdict == "quantized-copy" and report.quantized is not None
        (odd,) = report.quantized.not_source
        assert odd in (VICTIM, "blk.1.ffn_up.weight") and report.answer.values["names"] == (odd,)
        (row,) = (row for row in report.quantized.tensors if row.name == odd)
        assert row.relation == RELATIONS.get(damage, "other") and report.advice.code == "requantize"


def test_the_figures_against_the_definitions(source: str, tmp_path: Path) -> None:
    """In fp8, within half a step: no other code is nearer; rounding to nearest is torch's."""
    report = asked(files.fp8(tmp_path / "copy", SOURCE | {VICTIM: tuned(SOURCE, 0.05, 9)[VICTIM]}), source, mode="exact")
    assert report.quantized is not None
    (row,) = (row for row in report.quantized.tensors if row.name == VICTIM)
    made = tuned(SOURCE, 0.05, 9)[VICTIM].to(F32).reshape(4, 64, 2, 64)
    scale = made.abs().amax(dim=(1, 3), keepdim=True) / 448
    codes, p = (made / scale).to(torch.float8_e4m3fn), SOURCE[VICTIM].to(F32).reshape(4, 64, 2, 64)
    x, nearest = codes.to(F32) * scale, (p / scale).clamp(-448, 448).to(torch.float8_e4m3fn).to(F32) * scale
    table = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float64)
    every = torch.unique(table[table.isfinite()])
    at = torch.searchsorted(every, codes.to(torch.float64))
    step = every.diff()
    gap = torch.where(p > x, step[at.clamp(max=len(step) - 1)], step[(at - 1).clamp(min=0)]) * scale
    within = ((x - p).abs().double() <= gap / 2 * (1 + 1e-6)).double().mean()
    error, rounding = ((each - p).double().norm() / p.double().norm() for each in (x, nearest))
    assert row.within_half_step == pytest.approx(float(within), abs=1e-4)
    assert (row.error, row.error_of_nearest) == pytest.approx((float(error), float(rounding)), rel=1e-6)
    assert row.ratio == pytest.approx(float(error / rounding), rel=1e-6) and row.relation == "changed"


def test_two_bits_of_weights_with_outliers(tmp_path: Path) -> None:
    """Outliers widen the steps of their groups until many runs of values hardly resemble their source."""
    base, generator = model(10, width=256, layers=3), torch.Generator().manual_seed(2)
    far = {name: torch.rand(x.shape, generator=generator) < 0.004 for name, x in base.items() if files.is_quantized(name, x)}
    state = base | {name: torch.where(at, 5 * base[name], base[name]) for name, at in far.items()}
    source = Folder(tmp_path).write("source", state)
    report = asked(files.gptq(tmp_path / "copy", state, bits=2), source, mode="exact")
    assert report.verdict == "quantized-copy" and report.quantized is not None and not report.quantized.not_source


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_copy(name: str, source: str, tmp_path: Path) -> None:
    """An unrelated model that was quantized in the same way, and a fine-tune that differs by less than half of its rounding error.

    In a layout of calibrated methods the latter may be a calibrated copy as well."""
    unrelated = asked(FORMATS[name](tmp_path / "unrelated", model(11, width=128, layers=3)), source, mode="exact")
    assert unrelated.verdict == "unrelated" and unrelated.quantized is not None and len(unrelated.quantized.not_source) >= 12
    if name not in (*CALIBRATED, "GPTQ, nearest"):
        error = unrelated.quantized.error_of_nearest or 0.0
        child = asked(FORMATS[name](tmp_path / "child", tuned(SOURCE, 0.6 * error)), source, mode="exact")
        assert (child.verdict, child.answer.code) == ("derived", "quantized-derived")


def test_a_copy_of_a_copy_and_of_its_source(source: str, tmp_path: Path) -> None:
    first = files.fp8(tmp_path / "first", SOURCE)
    back: Tensors = {}
    for name, x in SOURCE.items():
        if files.is_quantized(name, x):
            blocks = x.to(F32).reshape(x.shape[0] // 64, 64, x.shape[1] // 64, 64)
            scale = blocks.abs().amax(dim=(1, 3), keepdim=True) / 448
            x = ((blocks / scale).to(torch.float8_e4m3fn).to(F32) * scale).reshape(x.shape)
        back[name] = x
    second = files.nvfp4(tmp_path / "second", back)
    alone, both = asked(second, first, mode="exact"), asked(second, source, first, mode="exact")
    assert (alone.verdict, both.verdict, both.parents) == ("quantized-copy", "quantized-copy", (first,))
    assert alone.quantized is not None and alone.quantized.ratio == pytest.approx(1)
    assert asked(first, second, mode="exact").verdict == "derived"  # more bits than its source


def test_a_part_is_quantized_and_a_tied_head_is_not_stored(tmp_path: Path) -> None:
    tied = dict(SOURCE) | {"lm_head.weight": SOURCE["model.embed_tokens.weight"].clone()}
    source = Folder(tmp_path).write("source", tied, {"model_type": "llama", "tie_word_embeddings": True})
    copy = files.nvfp4(tmp_path / "copy", SOURCE, kept=lambda name: "layers.1" in name)
    report = asked(copy, source, mode="exact")
    assert report.verdict == "quantized-copy" and report.quantized is not None and len(report.quantized.tensors) == 8
    assert report.coverage[0].whole and report.coverage[1].whole and {row.relation for row in report.conversion} == {"rounded", "equal"}
    state = SOURCE | {"model.embed_tokens.weight": model(3, width=128)["model.embed_tokens.weight"].to(BF16)}
    report = asked(files.nvfp4(tmp_path / "other", state), source, mode="exact")
    assert report.verdict == "quantized-copy" and report.answer.values["names"] == ("model.embed_tokens.weight",)


ODD = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize("mode", ["exact", "quick"])
@pytest.mark.parametrize(
    "factors",
    [torch.tensor(2.0), torch.exp(0.3 * torch.randn(128, generator=torch.Generator().manual_seed(1)))],
    ids=["one factor", "factors that the norm does not undo"],
)
def test_scales_that_no_norm_undoes_are_damage(factors: torch.Tensor, mode: Any, source: str, tmp_path: Path) -> None:
    report = asked(files.awq(tmp_path / "copy", SOURCE, odd={ODD: factors}), source, mode=mode)
    assert report.quantized is not None and report.quantized.not_source == (ODD,) and report.answer.code == "quantized-damaged"
    row = next(row for row in report.conversion if row.name == ODD)
    assert (row.factor == pytest.approx(2, rel=0.02)) if factors.dim() == 0 else (row.relation == "changed")


def _with_gates() -> Tensors:
    """A decoder with everything that AWQ scales together."""
    state = dict(SOURCE)
    for number, part in enumerate(("self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "post_attention_layernorm")):
        like = {"mlp.gate_proj": "mlp.up_proj", "post_attention_layernorm": "input_layernorm"}.get(part, "self_attn.q_proj")
        other = model(20 + number, width=128, layers=3)
        state |= {f"model.layers.{layer}.{part}.weight": other[f"model.layers.{layer}.{like}.weight"] for layer in range(3)}
    return state


@pytest.mark.parametrize(
    "odd",
    ["mlp.up_proj", "mlp.down_proj", "mlp.gate_proj", "self_attn.v_proj", "post_attention_layernorm", ""],
    ids=lambda odd: odd or "none",
)
def test_a_factor_that_nothing_undoes_is_damage_where_channels_are_scaled(odd: str, tmp_path: Path) -> None:
    """The factors of up_proj's rows and of down_proj's columns undo each other; a norm's those of all matrices behind it."""
    state, name = _with_gates(), f"model.layers.1.{odd}.weight"
    source = Folder(tmp_path).write("source", state)
    damaged = {name: 1.5 * state[name].to(F32)} if odd else {}
    report = asked(files.awq(tmp_path / "copy", state | damaged), source, mode="exact")
    assert report.quantized is not None and report.quantized.not_source == ((name,) if odd else ()), report.conversion
    row = next((row for row in report.conversion if row.name == name), None)
    assert row is None or odd == "post_attention_layernorm" or row.factor == pytest.approx(1.5, rel=0.01)


def test_a_router_is_scaled_with_the_experts(tmp_path: Path) -> None:
    """Behind the norm of the experts, but not quantized."""
    state = _with_gates() | {
        f"model.layers.{layer}.mlp.router.weight": model(30 + layer, width=128)["model.embed_tokens.weight"][:8] for layer in range(3)
    }
    source = Folder(tmp_path).write("source", state)
    report = asked(files.awq(tmp_path / "copy", state, kept=lambda name: "router" in name), source, mode="exact")
    assert report.verdict == "quantized-copy" and report.quantized is not None and not report.quantized.not_source, report.conversion


@pytest.mark.parametrize(
    ("odd", "damage"),
    [
        ("mlp.gate_proj", lambda x: x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))]),
        ("mlp.down_proj", lambda x: torch.cat([x[:, :17], x[:, 100:101].roll(3, 0), x[:, 18:]], dim=1)),
        ("input_layernorm", lambda x: 1.3 * x),
    ],
    ids=["rows", "a channel", "a norm"],
)
def test_damage_where_rows_and_columns_are_scaled(odd: str, damage: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path) -> None:
    """Neither the norm before a lost matrix is named with it, nor is a lost channel taken for a scaled one, or a norm for a trained one."""
    state, name = _with_gates(), f"model.layers.1.{odd}.weight"
    source = Folder(tmp_path).write("source", state)
    report = asked(files.awq(tmp_path / "copy", state | {name: damage(state[name].to(F32))}, strength=0.3), source, mode="exact")
    assert report.verdict == "quantized-copy" and report.quantized is not None
    assert report.quantized.not_source == (name,), report.conversion


def test_lost_scales_of_a_matrix_behind_a_norm(tmp_path: Path) -> None:
    """Its codes are the source's by factors of rows, which no other matrix undoes."""
    state = _with_gates()
    source, copy = Folder(tmp_path).write("source", state), files.awq(tmp_path / "copy", state)
    stored = load_file(tmp_path / "copy" / "model.safetensors")
    scales = "model.layers.1.mlp.gate_proj.scales"
    save_file(stored | {scales: torch.ones_like(stored[scales])}, tmp_path / "copy" / "model.safetensors")
    report = asked(copy, source, mode="exact")
    assert report.quantized is not None and report.quantized.not_source == ("model.layers.1.mlp.gate_proj.weight",)


def test_strong_factors_leave_the_error_that_they_cause(tmp_path: Path) -> None:
    """Against the values divided by the factors with which they were multiplied: weak channels lose most digits."""
    state = _with_gates()
    source, known = Folder(tmp_path).write("source", state), dict[str, torch.Tensor]()
    copy = files.awq(tmp_path / "copy", state, strength=0.8, known=known)
    report = asked(copy, source, mode="exact")
    assert report.quantized is not None and not report.quantized.not_source
    for row in report.quantized.tensors:
        p = state[row.name].to(F32)
        assert row.error == pytest.approx(float((known[row.name] - p).norm() / p.norm()), rel=0.06), row.name
        assert row.ratio == pytest.approx(1, abs=0.2)


def test_channels_that_are_lost_are_named(tmp_path: Path) -> None:
    """One channel of 256, which hardly moves the error of its tensor."""
    state = model(10, width=256, layers=2)
    source, damaged = Folder(tmp_path).write("source", state), state[ODD].clone()
    damaged[:, 17] = state[ODD][:, 100].roll(3)
    report = asked(files.awq(tmp_path / "copy", state | {ODD: damaged}), source, mode="exact")
    row = next(row for row in report.conversion if row.name == ODD)
    assert row.note is not None and (row.note.code, row.note.values["channels"]) == ("lost-channels", 1)
    assert report.quantized is not None and report.quantized.not_source == (ODD,)


@pytest.mark.parametrize("name", ["GPTQ", "GPTQ, nearest", "AWQ"])
def test_a_copy_of_a_fine_tune_is_not_one_of_its_base(name: str, source: str, tmp_path: Path) -> None:
    """Where errors are beyond rounding, what is not quantized tells."""
    state = tuned(SOURCE, 0.03)
    report = asked(FORMATS[name](tmp_path / "copy", state), source, mode="exact")
    assert (report.verdict, report.answer.code, report.advice.code) == ("derived", "quantized-trained", "name-base")
    assert report.quantized is not None and report.quantized.not_source[0] == "model.embed_tokens.weight"
    kept = {other: x for other, x in SOURCE.items() if not files.is_quantized(other, x)}
    report = asked(FORMATS[name](tmp_path / "kept", state | kept), source, mode="exact")  # as adapters of matrices leave it
    assert (report.verdict, report.answer.code) == ("quantized-copy", "quantized-or-trained")


@pytest.mark.parametrize(("one", "other"), [("GPTQ", "MLX"), ("MLX", "GPTQ"), ("GPTQ, nearest", "MLX, 8 bits"), ("MLX, 8 bits", "Q4_0")])
def test_two_copies_of_one_model_are_no_copies_of_each_other(one: str, other: str, tmp_path: Path) -> None:
    paths = [FORMATS[name](tmp_path / name, SOURCE) for name in (one, other)]
    report = asked(*paths, mode="exact")
    assert (report.verdict, report.answer.code, report.advice.code) == ("derived", "siblings", "compare-source")


@pytest.mark.parametrize("bits", [4, 8])
def test_a_sample_of_two_copies_stored_by_columns(bits: int, tmp_path: Path) -> None:
    """Both are read in the order in which they are stored."""
    one, other = files.awq(tmp_path / "one", _with_gates()), files.gptq(tmp_path / "other", _with_gates(), bits=bits)
    assert asked(one, other, mode="quick", budget=400_000).answer.code == "siblings"


def test_what_a_copy_lacks_and_what_a_sample_left_out_is_said(source: str, tmp_path: Path) -> None:
    lacking = {name: x for name, x in SOURCE.items() if name != "model.embed_tokens.weight"}
    copy = files.gptq(tmp_path / "copy", lacking, calibrated=False)
    report = asked(copy, source, mode="exact")
    assert report.quantized is not None and report.quantized.lacks == ("model.embed_tokens.weight",)
    assert "lacks" in {note.code for note in report.notes} and "Missing" in {tile.label for tile in report.tiles()}
    codes = Path(files.mlx(tmp_path / "codes", SOURCE), "model.safetensors")
    stored = load_file(codes)
    save_file({name: x for name, x in stored.items() if name != VICTIM.replace("weight", "scales")}, codes)
    without = asked(str(codes.parent), source, mode="exact").quantized
    assert without is not None and without.lacks == (VICTIM,) and (without.tensors_read, without.tensors_stored) == (11, 12)
    whole = files.gptq(tmp_path / "whole", SOURCE, calibrated=False)
    sample = asked(whole, source, mode="quick", budget=40_000)
    assert sample.quantized is not None and sample.quantized.tensors_read < sample.quantized.tensors_stored == 12
    assert sample.answer.code == "quantized" and sample.answer.values["read"] == sample.quantized.tensors_read


@pytest.mark.parametrize(
    ("name", "method", "scales"),
    [("fp8", "FP8 E4M3", "64x64 blocks"), ("GPTQ", "GPTQ INT4", "groups of 64"), ("AWQ", "AWQ INT4", "groups of 64"),
     ("MLX", "MLX INT4", "groups of 64"), ("Q4_0", "GGUF Q4_0", "groups of 32"), ("NVFP4", "NVFP4", "groups of 16")],
)  # fmt: skip
def test_methods_and_what_shares_a_scale_are_named(name: str, method: str, scales: str, source: str, tmp_path: Path) -> None:
    report = asked(FORMATS[name](tmp_path / "copy", SOURCE), source)
    assert report.quantized is not None and (report.quantized.method, report.quantized.scales) == (method, scales)


@pytest.mark.parametrize(("kind", "kept"), [("gemma2", True), ("llama", False)])
def test_norms_that_llama_cpp_stores_plus_one(kind: str, kept: bool, tmp_path: Path) -> None:
    source = Folder(tmp_path).write("source", SOURCE)
    Path(source, "config.json").write_text(f'{{"model_type": "{kind}"}}')
    norms = {name: 1 + x.to(F32) for name, x in SOURCE.items() if "norm" in name}
    report = asked(files.ggml(tmp_path / "copy", SOURCE | norms), source, mode="exact")
    assert report.quantized is not None and (not report.quantized.not_source) == kept, report.conversion


def test_queries_that_llama_cpp_reads_in_another_order_are_named(tmp_path: Path) -> None:
    source = Folder(tmp_path).write("source", SOURCE)
    Path(source, "config.json").write_text('{"model_type": "llama", "num_attention_heads": 4}')
    turned = {name: rotary_rows(x, 4) if "q_proj" in name else x for name, x in SOURCE.items()}
    for file, named in ((files.ggml(tmp_path / "wrong", SOURCE), True), (files.ggml(tmp_path / "right", turned), False)):
        report = asked(file, source, mode="exact")
        assert report.verdict == "quantized-copy" and ("not-reordered" in {note.code for note in report.notes}) == named
