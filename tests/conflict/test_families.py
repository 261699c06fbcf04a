"""Gram matrices of whole models, every family, against gradients of each sample alone in float64."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from analyzers.conflict.grams import unit_group
from analyzers.language_models.batch import collate
from analyzers.language_models.prompts import Encoded
from analyzers.language_models.unit_gradients import UnitPass
from tests.language_models.architectures import ARCHITECTURES, Architecture, blocks_of, build, every_architecture

from .captures import neuron_grams

LENGTHS, STARTS = (9, 14, 5, 12), (4, 1, 3, 6)
Grams = dict[tuple[int, int | None], Tensor]


def samples() -> list[Encoded]:
    tokens = torch.randint(3, 67, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(1)).tolist()
    return [Encoded(tuple(row[:length]), start, "", False) for row, length, start in zip(tokens, LENGTHS, STARTS, strict=True)]


def explicit(architecture: Architecture, attention: str) -> Grams:
    """(units, S, S) of each FFN and expert: from the gradients of each sample, run alone, through a model in float64."""
    model = build(architecture, attention).requires_grad_(True)
    found = []
    for sample in samples():
        model.zero_grad()
        tokens = torch.tensor([sample.token_ids])
        logits: Tensor = model(tokens).logits[0, sample.answer_start - 1 : -1]
        cross_entropy(logits, tokens[0, sample.answer_start :]).backward()  # type: ignore[no-untyped-call]
        found.append({key: rows.clone() for key, rows in blocks_of(architecture, model, lambda weight: weight.grad).items()})
    grams: Grams = {}
    for layer, expert, name in found[0]:
        if name in ("gate", "up", "down"):
            rows = torch.stack([each[layer, expert, name] for each in found])
            gram = torch.einsum("snd,rnd->nsr", rows, rows)
            grams[layer, expert] = grams.get((layer, expert), torch.zeros(())) + gram
    return grams


def cosines_of(gram: Tensor) -> Tensor:
    norms = gram.diagonal(dim1=1, dim2=2).sqrt()
    return gram / (norms[:, :, None] * norms[:, None])


@pytest.mark.parametrize("name", every_architecture())
def test_every_family_agrees_with_autograd_in_float64(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, expected = build(architecture, "eager", torch.float32), explicit(architecture, "eager")
    passed = UnitPass(model, collate(samples(), "cpu"))
    list(passed.forward())
    for gradients in passed.backward():
        neurons = unit_group(gradients, len(LENGTHS))
        found = torch.cat([sum(each.values(), torch.zeros(())) for _, each in neuron_grams(neurons, chunk_bytes=1 << 14)]).double()
        exact = expected.pop((gradients.layer, gradients.expert))
        cosines, truth = (cosines_of(gram) for gram in (found, exact))
        # A gradient that is nearly cancelled out has an error of its own size, in float32 on any route.
        norms = exact.diagonal(dim1=1, dim2=2).sqrt()
        counted = norms > 1e-2 * norms.amax(1, keepdim=True)
        pairs = counted[:, :, None] & counted[:, None]
        assert pairs.double().mean() > 0.2  # few tokens come to an expert
        assert float((cosines - truth).abs()[pairs].max()) < 1e-5
        assert not (torch.sign(cosines) != torch.sign(truth))[pairs & (truth.abs() > 1e-3)].any()
    assert not expected
