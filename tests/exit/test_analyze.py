"""The analysis from a reference to its report, on a built-in sample, against float64 and autograd."""

import shutil
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from analyzers.exit import ExitReport
from analyzers.exit.answer import advice
from analyzers.exit.heads import HEADS
from analyzers.exit.model_head import ModelHead
from analyzers.exit.signals import CEILINGS, METHODS, NULL
from analyzers.language_models.ffn import decoder_layers
from analyzers.language_models.samples import sample_folder
from tests.exit.sample_reports import MODEL, report, standard
from tests.language_models.architectures import ARCHITECTURES, build


def oracle(found: ExitReport) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """By autograd in float64, from the tokens of a report: losses, gradients at h and before the norm, h, and what the last layer gives."""
    model = cast(Any, LlamaForCausalLM).from_pretrained(sample_folder("tiny-bf16"), dtype=torch.float32).eval()
    kept: list[Tensor] = []
    hook = decoder_layers(model)[-1].register_forward_hook(lambda module, given, result: kept.append(result))
    rows, targets = [], []
    for token_ids, positions in zip(found.inputs.token_ids, found.inputs.positions, strict=True):
        with torch.no_grad():
            model(input_ids=torch.tensor([token_ids]))
        rows.append(kept.pop()[0, list(positions)])
        targets += [token_ids[position + 1] for position in positions]
    hook.remove()
    inner = torch.cat(rows).double().requires_grad_()
    gain, weight = (each.detach().double() for each in (model.model.norm.weight, model.lm_head.weight))
    hidden = inner * torch.rsqrt(inner.square().mean(-1, keepdim=True) + model.model.norm.variance_epsilon) * gain
    hidden.retain_grad()
    losses = cross_entropy(hidden @ weight.T, torch.tensor(targets), reduction="none")
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None and inner.grad is not None
    return losses.detach(), hidden.grad, inner.grad, hidden.detach(), inner.detach()


def test_the_exact_gradient_and_its_projection_are_those_of_autograd() -> None:
    """The parallel signal is the projection of the exact gradient on h: all that is said of it follows from autograd alone."""
    found = standard()
    losses, at_head, before, hidden, inner = oracle(found)
    row, share = found.methods["parallel"], (at_head * hidden).sum(-1).abs() / (at_head.norm(dim=-1) * hidden.norm(dim=-1))
    assert found.exact.loss == pytest.approx(float(losses.mean()), rel=1e-5)
    assert row.cosine is not None and row.cosine.mean == pytest.approx(float(share.mean()), abs=1e-5)
    assert row.cosine.p10 == pytest.approx(float(np.percentile(share, 10)), abs=1e-5)
    assert row.best_scale == pytest.approx(1, abs=1e-4) and row.parallel_energy == pytest.approx(1, abs=1e-6)
    energy = float(((at_head * hidden).sum(-1) / hidden.norm(dim=-1)).square().sum() / at_head.square().sum())
    assert found.exact.parallel_energy == pytest.approx(energy, rel=1e-4)
    assert row.norm_ratio == pytest.approx(energy**0.5, rel=1e-4) and row.total_cosine == pytest.approx(energy**0.5, rel=1e-4)
    assert found.exact.norm == pytest.approx(float(at_head.norm(dim=-1).square().mean().sqrt()), rel=1e-4)
    along = float(((before * inner).sum(-1) / inner.norm(dim=-1)).square().sum() / before.square().sum())
    assert found.exact.parallel_energy_before_norm == pytest.approx(along, abs=1e-8) and along < 1e-6


def test_before_the_norm_signals_are_sent_back_through_it() -> None:
    """RMSNorm by hand: the Jacobian takes away what goes along x, and the gain bends the rest."""
    found = standard()
    _, at_head, before, hidden, inner = oracle(found)
    parallel = (at_head * hidden).sum(-1, keepdim=True) / hidden.square().sum(-1, keepdim=True) * hidden
    scale = torch.rsqrt(inner.square().mean(-1, keepdim=True) + 1e-6)
    gain = (hidden / (inner * scale))[0]
    through = scale * (gain * parallel - inner * scale.square() * (inner * gain * parallel).mean(-1, keepdim=True))
    ratio = float(through.norm() / before.norm())
    assert found.methods["parallel"].before_norm.norm_ratio == pytest.approx(ratio, rel=1e-2)
    assert found.methods["parallel"].norm_ratio > 3 * ratio  # type: ignore[operator]


def test_all_of_the_head_is_the_exact_gradient() -> None:
    """Ceilings at their end: full rank, every row, as many anchors as the space has dimensions."""
    found = {(row.method, row.parameter, row.value): row for row in standard().sweep}
    for key in (("svd", "rank", 64), ("true_rows", "k", 512)):
        assert found[key].total_cosine == pytest.approx(1, abs=1e-5) and found[key].norm_ratio == pytest.approx(1, abs=1e-4)
    wide = report(methods=("span",), anchors=256, tokens=400, samples=12, sweep=False)
    assert wide.methods["span"].total_cosine == pytest.approx(1, abs=1e-3)
    assert {"anchors": 256, "width": 64} in [note.values for note in wide.notes if note.code == "wide-span"]


def test_more_of_a_ceiling_is_closer_and_random_codes_are_not() -> None:
    sweep = standard().sweep
    for method, parameter in (("svd", "rank"), ("true_rows", "k"), ("span", "anchors")):
        cosines = [row.total_cosine for row in sweep if (row.method, row.parameter) == (method, parameter)]
        assert len(cosines) >= 4 and all(
            before is not None and after is not None and before <= after + 1e-5 for before, after in pairwise(cosines)
        )
    for name in ("dense", "hybrid"):
        over = standard().methods[name].over_seeds
        assert over is not None and over.standard_error is not None and len(over.values) == 4
        assert over.mean == fmean(over.values) and over.standard_error == pytest.approx(stdev(over.values) / 2)
        assert abs(over.mean) < 0.1
    null = standard().null
    assert null is not None and abs(null.mean) < 0.1
    assert {row.method for row in sweep if row.null} == {NULL} and {row.method for row in sweep if row.ceiling} == set(CEILINGS)


def test_how_it_is_cut_into_pieces_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = report(sweep=True)
    monkeypatch.setattr("analyzers.exit.measure.EXIT_LOGITS_BYTES", 4 * 512 * 20)
    monkeypatch.setattr("analyzers.exit.measure.EXIT_CODES_BYTES", 4 * 512 * 100)
    cut = report(sweep=True)
    for name, method in whole.methods.items():
        assert method.total_cosine == pytest.approx(cut.methods[name].total_cosine, abs=1e-5)
        assert method.before_norm.norm_ratio == pytest.approx(cut.methods[name].before_norm.norm_ratio, rel=1e-3)
    for row, other in zip(whole.sweep, cut.sweep, strict=True):
        assert (row.method, row.parameter, row.value, row.seed) == (other.method, other.parameter, other.value, other.seed)
        assert row.null or row.total_cosine == pytest.approx(other.total_cosine, abs=1e-5)


@pytest.mark.parametrize("name", ["gemma2", "phi", "opt, norms after", "mixtral", "cohere"])
def test_other_families(name: str, tmp_path: Path) -> None:
    """A softcap, a bias, LayerNorm, no norm, experts, scaled logits: at full size the ceilings are the exact gradient.

    The loss is the model's own.
    A LayerNorm without a bias (cohere) leaves hidden states in a hyperplane, and so their span: what of the gradient is outside of it, the
    norm does not let through.
    """
    model: Any = build(ARCHITECTURES[name], dtype=torch.float32, vocab_size=512)
    model.save_pretrained(tmp_path / "model")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(sample_folder("tiny-bf16") / file, tmp_path / "model")
    width = ModelHead.of(model).width
    found = report(
        model=str(tmp_path / "model"), rank=width, k=512, anchors=48, sequence_length=48, methods=("parallel", "span", *CEILINGS)
    )
    for method in ("svd", "true_rows", "span"):
        at_head, before = found.methods[method].total_cosine, found.methods[method].before_norm.total_cosine
        assert (before if (name, method) == ("cohere", "span") else at_head) == pytest.approx(1, abs=1e-3)
    assert found.methods["parallel"].best_scale == pytest.approx(1, abs=1e-3)
    losses = []
    for token_ids, positions in zip(found.inputs.token_ids, found.inputs.positions, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([token_ids])).logits[0]
        losses += [cross_entropy(logits[at], torch.tensor(token_ids[at + 1])) for at in positions]
    assert found.exact.loss == pytest.approx(float(torch.stack(losses).mean()), rel=1e-4)


def test_costs_stand_beside_the_exact_gradient() -> None:
    found = standard()
    rows = {(row.method, row.form): row for row in found.cost.rows}
    assert set(rows) == {(name, form) for name in ("exact", *METHODS) for form in ("whole", "chunked")}
    exact = rows["exact", "whole"]
    fastest = min(rows["exact", "whole"], rows["exact", "chunked"], key=lambda row: row.seconds)
    assert found.cost.exact_form == fastest.form and fastest.time_ratio == fastest.memory_ratio == 1
    assert all(row.time_ratio == row.seconds / fastest.seconds for row in rows.values())
    logits = 4 * found.cost.tokens * found.head.vocabulary
    assert exact.peak_bytes >= 2 * logits and rows["exact", "chunked"].peak_bytes < exact.peak_bytes
    for name, method in found.methods.items():
        assert method.peak_bytes == rows[name, "chunked"].peak_bytes and method.seconds == rows[name, "chunked"].seconds


def test_the_answer_is_the_closest_signal_and_the_advice_follows_the_seconds() -> None:
    found = standard()
    best = found.methods["span"].cosine
    assert best is not None and (found.closest, found.answer.code) == ("span", "closest")
    rows = list(found.cost.rows)
    exact = min(row.seconds for row in rows if row.method == "exact")
    for factor, code in ((3.0, "keep-slow"), (0.5, "try"), (1.02, "time-again")):
        timed = [row.model_copy(update={"seconds": factor * exact}) if row.method == "span" else row for row in rows]
        assert advice(found.methods, timed, MODEL).code == code


def test_the_analysis_has_the_defaults_and_the_constructions_of_the_heads() -> None:
    """The signals of a report are those of drop-in heads with nothing but a seed: cosines with the exact gradient of autograd."""
    found = report(methods=("hybrid", "parallel_gold", "parallel_topmass"))
    _, at_head, _, hidden, _ = oracle(found)
    targets = torch.tensor(
        [ids[at + 1] for ids, positions in zip(found.inputs.token_ids, found.inputs.positions, strict=True) for at in positions]
    )
    weight = cast(Any, LlamaForCausalLM).from_pretrained(sample_folder("tiny-bf16"), dtype=torch.float32).lm_head.weight.detach()
    for name, method in found.methods.items():
        head = HEADS[name](weight)
        assert method.settings == {setting: getattr(head.settings, setting) for setting in method.settings}
        for loss in (lambda h, head=head: cross_entropy(head(h), targets), lambda h, head=head: head.loss(h, targets, chunk=9)):
            h = hidden.float().requires_grad_()
            torch.autograd.backward(loss(h))
            assert h.grad is not None and method.cosine is not None
            cosine = torch.nn.functional.cosine_similarity(h.grad.double(), at_head)
            assert method.cosine.mean == pytest.approx(float(cosine.mean()), abs=1e-5)
