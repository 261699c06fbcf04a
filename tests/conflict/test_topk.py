"""A top-k FFN: which neurons are kept, and that keeping all of them changes nothing."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from analyzers.conflict import ConflictRequest
from analyzers.conflict.request import Selection
from analyzers.conflict.topk import TopKMask, converted
from analyzers.language_models.batch import collate
from analyzers.language_models.prompts import Encoded
from analyzers.language_models.unit_gradients import UnitPass
from tests.language_models.architectures import ARCHITECTURES, build

GATE = torch.tensor([[3.0, -1.0, 2.0, 0.0]])
UP = torch.tensor([[-5.0, 4.0, 1.0, 2.0]])
PRODUCT = GATE * UP  # -15, -4, 2, 0
ONE = torch.tensor([True])


def kept(mask: TopKMask, gate: Tensor | None = GATE, up: Tensor = UP, product: Tensor = PRODUCT) -> list[int]:
    ones = torch.ones_like(product)
    scores = {id(each) for each in (gate, up, product)}
    assert len(scores) == 3
    result = mask(gate, up, product, ONE)
    assert torch.equal(result, torch.where(result != 0, product, 0 * ones))
    return sorted(int(place) for place in (result != 0).nonzero()[:, 1])


@pytest.mark.parametrize(
    ("select", "expected"), [("gate", [0, 2]), ("up", [1]), ("abs-up", [0, 1]), ("product", [2]), ("abs-product", [0, 1])]
)
def test_half_of_the_neurons_by_each_score(select: Selection, expected: list[int]) -> None:
    # By up and by product neuron 3 is kept as well: its product is 0.
    mask = TopKMask(select, 0.5, None)
    assert kept(mask) == expected
    assert mask.kept == 0.5


def test_at_least_one_and_ties_in_order() -> None:
    same = torch.ones(1, 4)
    assert kept(TopKMask("gate", 0.01, None), gate=same) == [0]
    assert TopKMask("gate", 0.5, None)(torch.zeros(1, 4), UP, PRODUCT, ONE).tolist() == [[-15, -4, 0, 0]]
    nothing = torch.zeros(1, 4)
    assert torch.isfinite(TopKMask("product", 0.5, 0.9)(nothing, nothing, nothing.clone(), ONE)).all()


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_what_padding_keeps_is_not_counted(name: str) -> None:
    model = build(ARCHITECTURES[name])

    def kept_of(encoded: Sequence[Encoded]) -> float:
        batch = collate(encoded, "cpu")
        mask = TopKMask("abs-product", 1.0, 0.5)
        passed = UnitPass(model, batch, masks={0: mask, 1: mask})
        list(passed.forward())
        list(passed.backward())
        return mask.kept

    tokens = (4, 13, 7)
    every = [Encoded(tuple(range(3, 4 + number)), 2, "", False) for number in tokens]
    alone = sum(kept_of([each]) * number for each, number in zip(every, tokens, strict=True)) / sum(tokens)
    assert kept_of(every) == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize(
    ("layers", "expected"), [("last", (7,)), ("all", tuple(range(8))), ("3", (3,)), ("2-4", (2, 3, 4)), ("0-7", tuple(range(8)))]
)
def test_the_layers_that_are_converted(layers: str, expected: tuple[int, ...]) -> None:
    assert converted(ConflictRequest(model="m", ffn="topk", topk_layers=layers), 8) == expected
