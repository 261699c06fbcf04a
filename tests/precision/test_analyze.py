"""The analysis from a reference to its report, on the built-in samples."""

import json
import shutil
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, get_args

import pytest
import torch

from analyzers.checkpoints import Access
from analyzers.core.errors import (
    InvalidData,
    InvalidRequest,
    LimitExceeded,
    ModelTooLarge,
    NoWeights,
)
from analyzers.core.request import Progress
from analyzers.language_models.samples import sample_folder
from analyzers.precision import PrecisionReport, PrecisionRequest, analyze
from analyzers.precision.quantization import fake_quantized
from analyzers.precision.variants import Quantization

MODEL = "sample:tiny-bf16"
ALL_KINDS = {"hidden", "hidden_grad", "logits", "logits_grad", "parameter_grad", "logprob", "loss"}


def report(*variants: str, model: str = MODEL, **asked: Any) -> PrecisionReport:
    settings: dict[str, Any] = {"sequences": 2, "sequence_length": 48, **asked}
    if variants:
        settings["variants"] = variants
    *_, last = analyze(PrecisionRequest(model=model, **settings), Access(local=True))
    assert isinstance(last, PrecisionReport)
    return last


@cache
def standard() -> PrecisionReport:
    return report("bf16", "same: dtype=fp32", "bf16_fp32_residual", "bf16_max_precision", "bf16_fp32_all_parts", "fp16", "fp16_autocast")


def test_a_variant_identical_to_the_reference_has_no_error_anywhere() -> None:
    same = standard().variants["same"]
    assert {row.kind for row in same.tensors} == ALL_KINDS
    assert all(row.rms == row.rms_rel == row.max == row.bias == 0 and row.nonfinite == 0 for row in same.tensors)
    errors = same.summary.model_dump(exclude={"mid_max_layer", "mid_max_bw_layer"})
    assert set(errors.values()) == {0.0}
    assert same.logprobs.ratio_max == 0


def test_the_summary_is_taken_of_the_tensors() -> None:
    layers = standard().reference.layers
    for variant in standard().variants.values():
        errors = {(row.kind, row.layer): row.rms_rel for row in variant.tensors if row.rms_rel is not None}
        forward = [errors["hidden", layer] for layer in range(layers)]
        backward = [errors["hidden_grad", layer] for layer in range(layers)]
        found = variant.summary
        assert (found.mid_median, found.mid_max) == (median(forward), max(forward))
        assert (found.mid_median_bw, found.mid_max_bw) == (median(backward), max(backward))
        assert (found.mid_max_layer, found.mid_max_bw_layer) == (forward.index(max(forward)), backward.index(max(backward)))
        assert (found.embeddings, found.embeddings_bw) == (errors["hidden", -1], errors["hidden_grad", -1])
        assert (found.logits, found.logits_bw, found.head) == (errors["logits", None], errors["logits_grad", None], errors["loss", None])
        assert found.head_bw == errors["hidden_grad", layers - 1]
        assert [row.layer for row in variant.headroom] == list(range(-1, layers + 1))
        first, last = variant.headroom[0], variant.headroom[-1]
        assert first.weights_at == first.backward_at == "model.embed_tokens.weight" and last.weights_at == "model.norm.weight"


def test_random_embeddings_show_what_rounding_does_to_gaussian_numbers() -> None:
    found = report("bf16", "fp16", random_init=True, data="random", sequences=4, sequence_length=256)
    assert found.reference.weights == "random"
    assert found.variants["bf16"].summary.embeddings == pytest.approx(0.00166, rel=0.02)
    assert found.variants["fp16"].summary.embeddings == pytest.approx(0.00021, rel=0.03)
    assert found.variants["bf16"] != report("bf16", random_init=True, data="random", seed=1).variants["bf16"]


def test_weights_rounded_before_leave_the_rounding_of_computation() -> None:
    stored, rounded = (report("bf16", "bf16_fp32_lm_head", model="sample:tiny-fp32", pre_rounded=rounded) for rounded in (False, True))
    assert stored.variants["bf16"].summary.embeddings == pytest.approx(0.00166, rel=0.02)
    assert rounded.variants["bf16"].summary.embeddings == 0
    before, after = stored.variants["bf16"].summary.mid_median, rounded.variants["bf16"].summary.mid_median
    assert before is not None and after is not None and 0 < after < before
    assert [note.code for note in rounded.notes] == ["pre_rounded"]


def test_the_first_layer_that_overflows_is_named() -> None:
    found = report("bf16", "fp16", "fp16_fp32_all_parts", model="sample:tiny-overflow")
    rows = found.reference.headroom
    first = next(row for row in rows if max(row.weights_max or 0, row.forward_max or 0) >= 65520)
    assert first.layer == 1 and found.fp16.module in (f"layer 1, {first.forward_at}", first.weights_at)
    assert (found.fp16.verdict, found.fp16.margin) == ("overflows", min(min(row.forward, row.backward, row.weights) for row in rows))  # type: ignore[type-var]
    assert standard().fp16.verdict == "safe" and standard().fp16.module is None
    for name in ("fp16", "fp16_fp32_all_parts"):
        variant = found.variants[name]
        assert variant.overflow is not None and (variant.overflow.layer, variant.overflow.name) == (1, "mlp.up_proj")
        assert variant.loss_scale is None and variant.loss is None and variant.summary.logits is None
        assert {row.name for row in variant.tensors if row.kind == "hidden" and not row.nonfinite} == {"embeddings", "layers.0"}
    assert found.variants["bf16"].overflow is None and found.variants["bf16"].summary.logits is not None
    assert (found.answer.code, found.answer.values["module"]) == ("fp16_overflows", found.fp16.module)
    json.loads(found.model_dump_json(), parse_constant=pytest.fail)


def test_what_is_inside_of_layers_on_request() -> None:
    found = report("bf16", inside=True)
    names = {row.name for row in found.variants["bf16"].tensors if row.kind == "inside" and row.layer == 2}
    assert {"self_attn.q_proj", "mlp.act_fn", "mlp.down_proj", "input_layernorm"} <= names
    assert names == {row.name for row in found.variants["bf16"].tensors if row.kind == "inside_grad" and row.layer == 2}


def test_progress_is_in_layers_and_closing_stops_the_run() -> None:
    items = list(analyze(PrecisionRequest(model=MODEL, variants=("bf16", "fp16"), sequences=1, sequence_length=16)))
    steps = [item for item in items if isinstance(item, Progress) and item.unit == "layers" and item.total]
    assert steps[-1].done == steps[-1].total == 3 * 2 * 4
    assert all(before.done <= after.done for before, after in pairwise(steps))
    assert {step.note.partition(":")[0] for step in steps} == {"reference", "bf16", "fp16"}
    running: Iterator[Any] = iter(analyze(PrecisionRequest(model=MODEL, sequences=1, sequence_length=16)))
    while not (isinstance(item := next(running), Progress) and "backward" in item.note):
        pass
    precision = torch.get_float32_matmul_precision()
    running.close()  # type: ignore[attr-defined]
    assert torch.get_float32_matmul_precision() == precision and not torch.is_autocast_enabled("cpu")


def test_a_report_has_the_first_tensors_and_its_files_all(monkeypatch: pytest.MonkeyPatch) -> None:
    every = report("bf16", "fp16").variants["fp16"].tensors
    monkeypatch.setattr("analyzers.core.limits.REPORT_TENSORS", 40)
    found = report("bf16", "fp16")
    assert found.variants["fp16"].tensors == every[:20] and {row.kind for row in every[:14]} == ALL_KINDS - {"parameter_grad"}
    assert len(found.tables()["tensors"]) == 40 and len(found.full_tables()["tensors"]) == 2 * len(every)
    assert len(PrecisionReport.model_validate_json(found.model_dump_json()).full_tables()["tensors"]) == 40


def test_random_weights_need_no_weight_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sample_folder("tiny-bf16"), folder)
    asked: dict[str, Any] = {"model": str(folder), "random_init": True, "sequence_length": 16}
    whole = report("bf16", **asked)
    for file in folder.glob("model*.safetensors*"):
        file.unlink()
    found = report("bf16", **asked)
    assert found.variants == whole.variants and found.reference.weights == "random"
    assert (found.checkpoint.files, found.checkpoint.tensors) == (0, 0)
    with pytest.raises(NoWeights):
        report("bf16", model=str(folder))
    torch.save({"a.weight": torch.ones(2)}, folder / "pytorch_model.bin")  # nor does it matter what they are
    assert report("bf16", **asked).variants == whole.variants
    for sizes, error, said in (
        ({"vocab_size": 10**9, "hidden_size": 2**16}, ModelTooLarge, r"needs [\d.,]+ TB of memory to run and this machine has"),
        ({"num_hidden_layers": 10**9}, LimitExceeded, "has 1,000,000,000 layers, more than"),
    ):
        config = json.loads((sample_folder("tiny-bf16") / "config.json").read_text()) | sizes
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(error, match=said):
            report("bf16", **asked)


def test_quantized_weights_lie_on_their_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    int8, fp8, mxfp4, fp8_tensor = (fake_quantized(weight, kind) for kind in get_args(Quantization))
    assert all(len(row.unique()) <= 255 for row in int8)
    assert (int8 - weight).abs().amax(1).le(weight.abs().amax(1) / 250).all()
    rows = fp8 / (weight.abs().amax(1, keepdim=True) / 448)
    torch.testing.assert_close(rows.to(torch.float8_e4m3fn).float(), rows, rtol=1e-5, atol=1e-5)
    whole = fp8_tensor / (weight.abs().amax() / 448)
    torch.testing.assert_close(whole.to(torch.float8_e4m3fn).float(), whole, rtol=1e-5, atol=1e-5)
    blocks = mxfp4.view(-1, 32)
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    for block in blocks:
        scale = torch.exp2(torch.floor(torch.log2(block.abs().max())) - 2)
        assert torch.isin(block.abs() / scale, grid).all()
    with pytest.raises(InvalidRequest, match="blocks of 32 values"):
        fake_quantized(weight[:, :40], "mxfp4")
    monkeypatch.setattr("analyzers.precision.quantization.find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match="torchao, which is not installed"):
        report("bf16_int8")


def test_text_is_cut_into_rows(tmp_path: Path) -> None:
    file = tmp_path / "some.txt"
    file.write_text("The cat sat on the mat. " * 20)
    found = report("bf16", data=str(file), sequences=3, sequence_length=16)
    pasted = report("bf16", text=file.read_text(), sequences=3, sequence_length=16)
    assert found.inputs.source == "some.txt" and pasted.inputs.source == "text" and found.inputs.commit == pasted.inputs.commit
    assert found.inputs.token_ids == pasted.inputs.token_ids and [len(row) for row in found.inputs.token_ids] == [16] * 3
    assert found.inputs.preview.startswith("<s>The cat sat") and found.inputs.predicted == 45
    one = report("bf16", text="a", sequences=3)
    assert one.inputs.token_ids == (one.inputs.token_ids[0],) and "short" in [note.code for note in one.notes]
    file.write_text(" \n\n")
    with pytest.raises(InvalidData, match=r"is empty: give a file with text\.$"):
        report("bf16", data=str(file))
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidData, match="not text in UTF-8"):
        report("bf16", data=str(file))
    with pytest.raises(InvalidData, match="works on the command line only"):
        list(analyze(PrecisionRequest(model=MODEL, data=str(file)), Access()))
    (folder := tmp_path / "folder.txt").mkdir()
    with pytest.raises(InvalidData, match="is a folder: name a file"):
        report("bf16", data=str(folder))
