"""Precision reports for reading: runs of samples and of tiny models, and engines on the tokens of one."""

import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

import mantissa
from analyzers.core.errors import MantissaError
from analyzers.language_models.samples import sample_folder
from analyzers.precision import PrecisionReport
from analyzers.precision.answers import advice, answer, engine_notes
from analyzers.precision.engine.measurements import Engine
from tests.language_models.architectures import ARCHITECTURES, build
from tests.precision.engine_trials import chosen, logits
from tests.precision.test_experts import save as save_experts
from tests.words.hostile import HOSTILE, refusal

SHORT: dict[str, Any] = {"sequences": 2, "sequence_length": 24}
TOKENS = [[5, 17, 3, 29, 41, 2, 11, 23], [7, 7, 19, 31, 1, 13, 37, 4]]


def reports() -> dict[str, PrecisionReport | MantissaError]:
    """Return runs on the CPU, one thread each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {**_runs(), **_engines()}
    finally:
        torch.set_num_threads(threads)


def _runs() -> dict[str, PrecisionReport | MantissaError]:
    sample: Any = partial(mantissa.precision, "sample:tiny-bf16", **SHORT)
    tiny = partial(build, dtype=torch.float32)
    found: dict[str, PrecisionReport | MantissaError] = {
        "the default variants of a sample": sample(),
        "one variant": sample(variants=["bf16"]),
        "nothing is rounded": sample(variants=["fp32"]),
        "an overflow in fp16": mantissa.precision("sample:tiny-overflow", **SHORT, variants=["bf16", "fp16"]),
        "settings without effect, on random weights and a short text": sample(
            variants=["soft: dtype=fp16, fp32=softmax", "tf32", "x: dtype=bf16, fp32=router+softmax, reductions=full"],
            text="One plus one is two.",
            random_init=True,
            pre_rounded=True,
        ),
        "a mixture of experts": mantissa.precision(
            tiny(ARCHITECTURES["glm4_moe"]), token_ids=TOKENS, variants=["bf16", "mine: dtype=bf16, round=all"], attention="eager"
        ),
        "attention that transformers computes in two ways": mantissa.precision(
            tiny(ARCHITECTURES["falcon, alibi"], "sdpa"),
            token_ids=TOKENS,
            variants=["plain: dtype=fp32", "other: dtype=fp32, attention=eager"],
        ),
    }
    found["attention that transformers does not have as sdpa"] = mantissa.precision(
        tiny(ARCHITECTURES["gemma2"]), token_ids=TOKENS, variants=["bf16"]
    )
    found["a language model within one that also sees"] = mantissa.precision(
        tiny(ARCHITECTURES["gemma3, text of a model that also sees"], "sdpa"), token_ids=TOKENS, variants=["bf16"]
    )
    with tempfile.TemporaryDirectory() as folder:
        hostile = Path(folder) / HOSTILE
        save_experts(hostile, 32)
        asked: dict[str, Any] = {"data": "random", "sequence_length": 24, "inside": True, "variants": ["bf16", "bf16_fp32_residual"]}
        found["routers that flip, in a folder with a hostile name"] = _moved(mantissa.precision(str(hostile), **asked), f"/{HOSTILE}")
        scores = _with_large_scores(Path(folder) / "scores")
        over = mantissa.precision(scores, **SHORT, attention="eager", variants=["fp16"])
        found["scores of attention that overflow"] = _moved(over, "/models/scores")
    found["a variant that does not exist"] = refusal(lambda: sample(variants=["fp61"]))
    return found


def _moved(report: PrecisionReport, folder: str) -> PrecisionReport:
    """Return the same report on another folder than a temporary one."""
    return report.model_copy(update={"checkpoint": report.checkpoint.model_copy(update={"ref": folder})})


def _with_large_scores(folder: Path) -> str:
    """Save a model whose queries and keys are so large that their product overflows, which no module returns."""
    model: Any = AutoModelForCausalLM.from_pretrained(sample_folder("tiny-bf16"), dtype=torch.float32)
    with torch.no_grad():
        for name in ("q_proj", "k_proj"):
            getattr(model.model.layers[0].self_attn, name).weight *= 200
    model.save_pretrained(folder)
    for file in sample_folder("tiny-bf16").glob("tokenizer*"):
        shutil.copy(file, folder)
    return str(folder)


def _engines() -> dict[str, PrecisionReport]:
    """Return a clean engine, and others of which the facts are given: what is too rare or too slow to be run here."""
    model: Any = AutoModelForCausalLM.from_pretrained(sample_folder("tiny-bf16"), dtype=torch.bfloat16, attn_implementation="eager")
    ids = torch.randint(3, 512, (8, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        log_p = chosen(logits(model, ids).float(), ids)
    rows = [{"token_ids": row, "logprobs": [None, *values]} for row, values in zip(ids.tolist(), log_p.tolist(), strict=True)]
    clean = mantissa.precision("sample:tiny-bf16", logprobs=rows, variants=["bf16"], sequence_length=16)
    fp16 = clean.fp16.model_copy(update={"verdict": "overflows", "margin": -7.73, "value": 1.39e7, "module": "layer 1, mlp.up_proj"})
    over = _changed(clean.model_copy(update={"fp16": fp16}), {})
    return {"a clean engine": clean, "an engine of a model that overflows": over} | {
        f"an engine with {title}": _changed(clean, facts) for title, facts in _facts(clean).items()
    }


def _facts(clean: PrecisionReport) -> dict[str, dict[str, Any]]:
    assert clean.engine is not None
    ratio = clean.engine.ratio.model_dump()
    near, far = ratio | {"value": 1.15, "low": 1.05, "high": 1.25}, ratio | {"value": 24.8, "low": 23.0, "high": 26.7}
    none = ratio | {"low": None, "high": None}
    beyond = {"verdict": "beyond", "ratio": far}

    def caused(*causes: tuple[str, Any]) -> dict[str, Any]:
        return beyond | {"causes": [{"cause": cause, "value": value, "explains": "all"} for cause, value in causes]}

    return {
        "a temperature": caused(("temperature", 0.9)),
        "digits that are missing": caused(("rounded", "bf16")),
        "other logarithms": caused(("logarithm", 2)),
        "an offset": caused(("offset", 1)),
        "tokens at minus infinity": caused(("forbidden", 3)) | {"forbidden": 3, "ratio": near},
        "causes that are not told apart": caused(("quantized", "fp8"), ("offset", 1)),
        "a difference that nothing explains, without torchao": beyond | {"not_tried": ["fp8", "fp8_tensor"]},
        "a ratio that more tokens decide": {"verdict": "undecided", "ratio": near, "needed": 5_200},
        "a ratio at the limit": {"verdict": "undecided", "ratio": near | {"value": 1.2}},
        "few tokens": {"verdict": "undecided", "ratio": none, "compared": 5},
        "a bf16 run without error": {"verdict": "undecided", "ratio": none | {"value": None}},
    }


def _changed(report: PrecisionReport, facts: dict[str, Any]) -> PrecisionReport:
    """Return a report with other facts of the engine, and with what it says of these."""
    assert report.engine is not None
    engine = Engine.model_validate(report.engine.model_dump() | facts)
    said = {
        "answer": answer(report.reference, report.variants, report.fp16, engine, report.inputs.predicted),
        "advice": advice(report.checkpoint.ref, report.variants, report.fp16, engine),
        "notes": tuple(engine_notes(engine, report.inputs)),
    }
    return report.model_copy(update={"engine": engine, **said})
