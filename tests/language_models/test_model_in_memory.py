"""A model in memory is the caller's: nothing of it is changed, and what runs are its own values."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers.utils import logging

import mantissa
from analyzers.core.errors import InvalidCheckpoint
from analyzers.language_models.load import OpenModel
from tests.language_models.architectures import ARCHITECTURES, VOCABULARY, build, every_architecture

IDS = torch.randint(3, VOCABULARY, (2, 8), generator=torch.Generator().manual_seed(2)).tolist()
OPTIONS: dict[str, dict[str, Any]] = {
    "conflict": {"token_ids": IDS},
    "precision": {"token_ids": IDS, "variants": ["bf16_fp32_all_parts"]},
    "exit": {"token_ids": IDS, "sweep": False, "seeds": 1},
}
SOME = ("llama", "gpt2", "falcon_h1")
EVERY = every_architecture(SOME)


def bits(value: Tensor | None) -> Any:
    return None if value is None else (value.dtype, value.data_ptr(), value.clone())


def state(model: Any) -> dict[str, Any]:
    """Everything of a caller's that a run could change."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    modules = list(model.named_modules())
    return {
        "tensors": {name: (id(value), value._version, value.requires_grad, bits(value)) for name, value in tensors},
        "grads": {name: bits(value.grad) for name, value in model.named_parameters()},
        "training": {name: module.training for name, module in modules},
        "attributes": {name: sorted(set(vars(module)) - {"_compiled_call"}) for name, module in modules},
        "hooks": {
            name: (len(module._forward_hooks), len(module._forward_pre_hooks), len(module._backward_hooks)) for name, module in modules
        },
        "config": (copy.deepcopy(model.config.to_dict()), model.config._attn_implementation),
        "random": torch.get_rng_state(),
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one.view(-1).view(torch.uint8), other.view(-1).view(torch.uint8))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return len(one) == len(other) and all(map(same, one, other)) if isinstance(one, tuple) else bool(one == other)


def given(name: str) -> Any:
    """A model as in training: some weights frozen, gradients, a hook, and a row of its own for the padding token."""
    text = ARCHITECTURES[name].settings.get("text_config")
    settings = {"text_config": {**text, "pad_token_id": 7}} if text else {"pad_token_id": 7}
    model = build(ARCHITECTURES[name], dtype=torch.float32, **settings)
    for number, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(number % 2 == 0)
        parameter.grad = torch.ones_like(parameter) if number % 4 == 0 else None
    model.register_forward_pre_hook(lambda module, inputs: None)
    return model.train()


@pytest.mark.parametrize("name", EVERY)
def test_nothing_of_the_callers_is_changed(name: str) -> None:
    model = given(name)
    before = state(model)
    for question, options in OPTIONS.items():
        getattr(mantissa, question)(model, **options)
        after = state(model)
        assert not [what for what in before if not same(before[what], after[what])], question


@pytest.mark.parametrize("name", EVERY)
def test_what_runs_are_the_callers_values(name: str) -> None:
    """The row of the padding token too, which transformers zeroes in some families as it loads them from files."""
    model = given(name)
    ids = [[5, 7, 7, 9, 11], [7, 12, 5, 7, 6]]
    losses = [sample.loss for sample in mantissa.conflict(model, token_ids=ids, attention="eager").samples]
    with torch.no_grad():
        logits = model.eval()(torch.tensor(ids)).logits[:, :-1].double()
    exact = [float(cross_entropy(each, torch.tensor(row[1:]))) for each, row in zip(logits, ids, strict=True)]
    assert losses == pytest.approx(exact, rel=1e-4)


def test_weights_that_the_configuration_does_not_describe() -> None:
    model: Any = build(ARCHITECTURES["llama"], dtype=torch.float32)
    model.config.intermediate_size = 40
    with pytest.raises(InvalidCheckpoint, match=r"proj.weight\" is stored as \(32, 48\), and config.json describes \(32, 40\)"):
        mantissa.conflict(model, token_ids=IDS)
    model.config.intermediate_size, model.config.num_hidden_layers = 48, 3
    with pytest.raises(InvalidCheckpoint, match=r"9 of the tensors that config.json describes are missing"):
        mantissa.conflict(model, token_ids=IDS)


def test_models_of_two_threads_do_not_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # transformers sets torch's default dtype while it builds a model, for all threads.
    model = build(ARCHITECTURES["llama"]).bfloat16()
    running = most = 0
    load: Callable[[OpenModel], Any] = OpenModel.load

    def observed(opened: OpenModel) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        loaded = load(opened)
        running -= 1
        return loaded

    def figures() -> Any:
        return mantissa.precision(model, token_ids=IDS, variants=["bf16"]).variants

    before = torch.get_rng_state(), torch.get_default_dtype(), logging.get_verbosity()
    alone = figures()
    monkeypatch.setattr(OpenModel, "load", observed)
    with ThreadPoolExecutor(3) as threads:
        together = [threads.submit(figures) for _ in range(3)]
    assert most == 1 and [each.result() for each in together] == [alone] * 3
    assert torch.equal(torch.get_rng_state(), before[0]) and (torch.get_default_dtype(), logging.get_verbosity()) == before[1:]


@pytest.mark.parametrize("question", OPTIONS)
@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16)])
def test_the_modes_of_the_caller_change_nothing(question: str, mode: Callable[[], Any]) -> None:
    model, ask = given("llama"), getattr(mantissa, question)
    plain = ask(model, **OPTIONS[question])
    with mode():
        found = ask(model, **OPTIONS[question])
    fields = {"samples", "model", "variants", "exact"}
    assert found.model_dump(include=fields) == plain.model_dump(include=fields)


@pytest.mark.parametrize("question", OPTIONS)
def test_more_outputs_that_training_asked_for_change_nothing(question: str) -> None:
    """An auxiliary loss of experts leaves ``output_router_logits`` in the config, and layers run one by one have none."""
    model, ask = given("mixtral"), getattr(mantissa, question)
    plain = ask(model, **OPTIONS[question])
    for name in ("output_router_logits", "output_hidden_states", "output_attentions"):
        setattr(model.config, name, True)
    fields = {"samples", "model", "variants", "exact"}
    assert ask(model, **OPTIONS[question]).model_dump(include=fields) == plain.model_dump(include=fields)
