"""The fp16 passport, against plain hooks on transformers' own model in float32: verdict, margins, the first overflow with its token."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from analyzers.checkpoints import Access
from analyzers.language_models.samples import sample_folder
from analyzers.precision_variants import PrecisionReport, PrecisionRequest, analyze
from analyzers.precision_variants.fp16_passport import Fp16Passport
from analyzers.precision_variants.magnitudes import Spot, extreme

SAMPLE = sample_folder("tiny-bf16")
TEXT = "One plus one is two, and two plus two is four. What is 9 times 12? It is 108, of course; and 12 times 12 is 144."
LENGTH = 24


def run(model: str, *variants: str, **asked: Any) -> PrecisionReport:
    settings: dict[str, Any] = {"sequences": 2, "sequence_length": LENGTH, "variants": variants or ("bf16",), **asked}
    *_, last = analyze(PrecisionRequest(model=model, **settings), Access(local=True))
    assert isinstance(last, PrecisionReport)
    return last


def passport(model: str, *variants: str, **asked: Any) -> Fp16Passport:
    return run(model, *variants, **asked).fp16_passport


def rows_of_text() -> tuple[list[list[int]], int]:
    """Two rows, and a token that can be read and is in the second alone."""
    tokenizer = AutoTokenizer.from_pretrained(SAMPLE)
    token_ids = tokenizer(TEXT)["input_ids"]
    rows = [token_ids[:LENGTH], token_ids[LENGTH : 2 * LENGTH]]
    return rows, next(each for each in rows[1][2:-1] if each not in rows[0] and str(tokenizer.decode([each])).strip())


def with_a_loud_token(folder: Path, **strengths: float) -> str:
    """A model in which one token alone is loud in layer 1: its embedding has a direction of its own, which the named maps amplify."""
    model = cast(Any, AutoModelForCausalLM.from_pretrained(SAMPLE, dtype=torch.float32))
    _, token = rows_of_text()
    with torch.no_grad():
        table = model.model.embed_tokens.weight
        table[:, 0] = 0
        table[token] = 0
        table[token, 0] = 100 * table.abs().max()
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0
            layer.mlp.down_proj.weight[0] = 0
        mlp = model.model.layers[1].mlp
        for name, strength in strengths.items():
            getattr(mlp, name).weight[0] = 0
            getattr(mlp, name).weight[0, 0] = strength
        mlp.down_proj.weight[:, 0] = 0
    model.save_pretrained(folder)
    for file in SAMPLE.glob("tokenizer*"):
        shutil.copy(file, folder)
    return str(folder)


def measured(folder: str, rows: Sequence[Sequence[int]]) -> list[tuple[str, torch.Tensor]]:
    """What enters and leaves the modules of the layers, in the order computed, and the logits."""
    model = cast(Any, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    seen: list[tuple[str, torch.Tensor]] = []

    def hook(name: str) -> Any:
        def record(module: nn.Module, given: Any, output: Any) -> None:
            seen.extend((f"{name} input", each.clone()) for each in given if isinstance(each, torch.Tensor))
            seen.append((name, (output[0] if isinstance(output, tuple) else output).clone()))

        return record

    for name, module in model.model.layers.named_modules(prefix="layers"):
        if "." in name and (not next(module.children(), None) or name.count(".") == 1):
            module.register_forward_hook(hook(name))
    with torch.no_grad():
        seen.append(("logits", model(torch.tensor(rows)[:, :-1], use_cache=False).logits))
    return seen


def place(tensor: torch.Tensor) -> tuple[int, int, float]:
    index = np.unravel_index(int(tensor.abs().argmax()), tensor.shape)
    return int(index[0]), int(index[1]), float(tensor[tuple(map(int, index))])


def check_against(folder: str, found: Fp16Passport, rows: Sequence[Sequence[int]]) -> None:
    """The largest value, and the first module above the limit, are those of the hooks."""
    seen = measured(folder, rows)
    largest = max(float(tensor.abs().max()) for _, tensor in seen)
    assert found.forward.margin_bits == pytest.approx(np.log2(65504 / largest), abs=1e-4)
    over = next(((name, tensor) for name, tensor in seen if float(tensor.abs().max()) > 65520), None)
    assert (found.first_overflow is None) == (over is None)
    if over is not None and found.first_overflow is not None:
        row, position, value = place(over[1])
        first = found.first_overflow
        assert (first.module, first.text, first.position) == (over[0], row, position)
        assert first.value == pytest.approx(value, rel=1e-4)
        assert found.rescale is not None and found.rescale.module == over[0]
        assert abs(value) / found.rescale.factor <= 65504 / 2 < abs(value) / (found.rescale.factor / 2)
        assert np.log2(found.rescale.factor) % 1 == 0


def test_one_module_overflows_on_one_text_only(tmp_path: Path) -> None:
    rows, token = rows_of_text()
    model = with_a_loud_token(tmp_path, gate_proj=0.0, up_proj=6_000.0)
    found = passport(model, text=TEXT)
    assert found.verdict == "overflows" and found.texts == 2 and found.tokens == 2 * (LENGTH - 1)
    check_against(model, found, rows)
    first = found.first_overflow
    assert first is not None and first.module == "layers.1.mlp.up_proj" and first.text == 1 and first.position is not None
    assert rows[1][first.position] == token
    tokenizer = AutoTokenizer.from_pretrained(SAMPLE)
    assert first.excerpt and first.excerpt.endswith(str(tokenizer.decode([token])).strip())
    alone = passport(model, text=tokenizer.decode(rows[0], skip_special_tokens=True), sequences=1, sequence_length=LENGTH - 4)
    assert alone.verdict == "safe" and alone.first_overflow is None and alone.rescale is None


def test_a_product_that_enters_a_map_overflows_though_no_output_does(tmp_path: Path) -> None:
    model = with_a_loud_token(tmp_path, gate_proj=100.0, up_proj=100.0)
    found = passport(model, text=TEXT)
    check_against(model, found, rows_of_text()[0])
    assert found.verdict == "overflows" and found.rescale is not None and found.rescale.module == "layers.1.mlp.down_proj input"
    run_in_fp16 = run(model, "fp16", text=TEXT)
    assert run_in_fp16.variants["fp16"].overflow is not None, "torch's own run in fp16 agrees"
    assert (run_in_fp16.answer.code, run_in_fp16.answer.values["module"]) == ("fp16_overflows", "layers.1.mlp.down_proj input")


def test_a_margin_under_two_bits_is_a_risk(tmp_path: Path) -> None:
    model = with_a_loud_token(tmp_path, gate_proj=0.0, up_proj=1_000.0)
    found = passport(model, text=TEXT)
    check_against(model, found, rows_of_text()[0])
    assert found.verdict == "at_risk" and found.forward.margin_bits is not None and 0 < found.forward.margin_bits < 2


def test_scores_that_overflow_are_no_output_but_a_run_in_fp16_tells(tmp_path: Path) -> None:
    """q k is in fp16 before it is scaled: no module has it as its output."""
    model = cast(Any, AutoModelForCausalLM.from_pretrained(SAMPLE, dtype=torch.float32))
    with torch.no_grad():
        for name in ("q_proj", "k_proj"):
            getattr(model.model.layers[0].self_attn, name).weight *= 200
    model.save_pretrained(tmp_path)
    for file in SAMPLE.glob("tokenizer*"):
        shutil.copy(file, tmp_path)
    without, found = (run(str(tmp_path), name, attention="eager") for name in ("bf16", "fp16"))
    assert without.fp16_passport.verdict != "overflows"
    assert found.fp16_passport.verdict == "overflows" and found.fp16_passport.first_overflow is None
    assert (found.answer.code, found.answer.values["variants"]) == ("not_finite", ("fp16",))


def test_the_sample_that_overflows_and_the_one_that_is_safe() -> None:
    over, safe = passport("sample:tiny-overflow"), passport("sample:tiny-bf16", "fp16")
    check_against(str(sample_folder("tiny-overflow")), over, run("sample:tiny-overflow").inputs.token_ids)
    assert over.verdict == "overflows" and over.weights.margin_bits is not None and over.weights.margin_bits < 0
    check_against(str(SAMPLE), safe, run("sample:tiny-bf16").inputs.token_ids)
    assert safe.verdict == "safe" and safe.first_overflow is None and safe.not_called == ()
    assert safe.cut and safe.tokens == 46


def test_what_was_not_measured_is_null_and_said() -> None:
    drawn = passport("sample:tiny-bf16", data="random")
    assert not drawn.cut and drawn.forward.excerpt is None and drawn.forward.position is not None
    whole = passport("sample:tiny-bf16", text="One plus one is two.", sequence_length=512, sequences=1)
    assert not whole.cut


@pytest.mark.parametrize(
    ("name", "shape", "index", "token"),
    [
        ("mlp.gate", (18, 4), 17 * 4 + 1, (1, 8)),
        ("mlp.experts", (18, 16), 16, (0, 1)),
        ("mlp.experts.act_fn input", (18, 16), 16, None),  # the rows are those of the experts, one after the other
        ("self_attn.q_norm", (2, 9, 4, 8), 10 * 32, (1, 1)),
        ("self_attn.q_norm", (2, 9, 9, 8), 10 * 72, None),  # as many heads as tokens: either may come first
        ("model.layers.0.mlp.gate.weight", (18, 4), 5, None),
    ],
)
def test_a_token_is_named_only_where_the_axes_are_those_of_tokens(
    name: str, shape: tuple[int, ...], index: int, token: tuple[int, int] | None
) -> None:
    inside, by_token = "weight" not in name, "weight" not in name and not name.endswith("act_fn input")
    found = extreme(Spot(0, name, -3.0, 0, torch.float32, shape, index, inside, by_token), 2, 9)
    assert (found.text, found.position) == (token or (None, None)) and found.value == -3.0
    assert found.module == (name if "weight" in name else f"layers.0.{name}") and extreme(None, 2, 9).margin_bits is None
