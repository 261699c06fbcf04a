"""The end of a model of every family: its head, its tail, and the backward pass through it."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from analyzers.core.errors import UnknownArchitecture
from analyzers.exit.hidden_states import Positions, hidden_states
from analyzers.exit.model_head import ModelHead
from analyzers.language_models.batch import IGNORED, Batch
from analyzers.language_models.ffn import decoder_layers
from analyzers.language_models.stages import Stages
from tests.language_models.architectures import ARCHITECTURES, LAYERS, VOCABULARY, Architecture, build, every_architecture

TOKENS = torch.randint(3, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
TIED = Architecture("llama", {}, {"tie_word_embeddings": True})


def check(model: nn.Module) -> None:
    """Compare the head with the model's own logits."""
    stages = Stages(model, [TOKENS[:1]])
    list(stages.forward())
    ModelHead.of(model).check(stages, stages.parts[0].hidden[-1][0])


def states_of(model: nn.Module, batch: Batch, measured: Positions) -> tuple[list[int], Any]:
    """Return the progress, and the hidden states of the last layer."""
    running, behind = hidden_states(model, batch, measured), list[int]()
    while True:
        try:
            behind.append(next(running))
        except StopIteration as done:
            return behind, done.value[1]


@pytest.mark.parametrize("name", [*every_architecture(), "tied"])
def test_head_and_tail_are_those_of_the_model(name: str) -> None:
    """From what the last layer gives to the logits, and the gradient back to there, against the model's own."""
    model = build({**ARCHITECTURES, "tied": TIED}[name], dtype=torch.float32)
    head = ModelHead.of(model)
    check(model)
    inner, whole = _last_layer(model)
    rows = inner.detach().flatten(0, 1)
    logits = whole.flatten(0, 1)
    torch.testing.assert_close(head.logits(head.tail(rows)), logits.detach(), rtol=1e-4, atol=1e-5)

    targets = torch.randint(VOCABULARY, (len(rows),), generator=torch.Generator().manual_seed(2))
    (expected,) = torch.autograd.grad(nn.functional.cross_entropy(logits, targets, reduction="sum"), inner)
    hidden = head.tail(rows).detach().requires_grad_()
    (signal,) = torch.autograd.grad(nn.functional.cross_entropy(head.logits(hidden), targets, reduction="sum"), hidden)
    (found, twice) = head.before(rows, [signal, 2 * signal])
    torch.testing.assert_close(found, expected.flatten(0, 1), rtol=1e-3, atol=1e-5 * float(expected.abs().max()))
    torch.testing.assert_close(twice, 2 * found)


def test_another_head_than_the_models_is_refused() -> None:
    """A family that does something to its logits of which nothing is known is named, not measured wrongly."""
    model = build(ARCHITECTURES["llama"], dtype=torch.float32)
    cast(Any, model).lm_head.register_forward_hook(lambda module, given, result: result * 1.1)
    with pytest.raises(UnknownArchitecture, match='type "llama" compute logits from their last layer is not known'):
        check(model)
    cast(Any, model).lm_head = nn.Sequential(cast(Any, model).lm_head)
    with pytest.raises(UnknownArchitecture, match="no head that is one linear map"):
        ModelHead.of(model)
    cast(Any, model).lm_head = cast(Any, model).lm_head[0]
    del cast(Any, model).get_decoder().norm
    with pytest.raises(UnknownArchitecture, match=r"The final norm of models of the type .* is not known"):
        ModelHead.of(model)


def test_hidden_states_are_taken_before_each_token_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(ARCHITECTURES["gpt2"], dtype=torch.float32)
    batch = _batch()
    measured = Positions.of(batch, 100, 0)
    assert measured.samples.tolist() == [0, 0, 0, 1] and measured.positions.tolist() == [4, 5, 6, 1]
    assert measured.targets.tolist() == [TOKENS[0, 5], TOKENS[0, 6], TOKENS[0, 7], TOKENS[1, 2]]
    head = ModelHead.of(model)
    with torch.no_grad():
        expected = cast(Any, model)(input_ids=TOKENS, output_hidden_states=True).hidden_states
    for tokens in (1, 1024):
        monkeypatch.setattr("analyzers.language_models.stages.PART_TOKENS", tokens)
        behind, found = states_of(model, batch, measured)
        torch.testing.assert_close(head.tail(found), expected[-1][measured.samples, measured.positions])
        assert behind == list(range(1, LAYERS + 1))


def _batch() -> Batch:
    labels = torch.full_like(TOKENS, IGNORED)
    labels[0, 5:8] = TOKENS[0, 5:8]
    labels[1, 2] = TOKENS[1, 2]
    return Batch(TOKENS, labels, (9, 9))


def _last_layer(model: nn.Module) -> tuple[Tensor, Tensor]:
    """What the model's last layer gives, as a leaf, and the logits that follow from it."""
    kept: list[Tensor] = []

    def cut(module: nn.Module, given: Any, result: Any) -> Any:
        leaf = (result[0] if isinstance(result, tuple) else result).detach().requires_grad_()
        kept.append(leaf)
        return (leaf, *result[1:]) if isinstance(result, tuple) else leaf

    hook = decoder_layers(model)[-1].register_forward_hook(cut)
    try:
        logits = cast(Any, model)(input_ids=TOKENS, use_cache=False).logits
    finally:
        hook.remove()
    return kept[0], logits
