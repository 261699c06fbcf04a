"""Models that load and then fail while they run, and what is said of it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import HeliumConfig, HeliumForCausalLM

from analyzers import exit_feedback, gradient_conflict, precision_variants
from analyzers.checkpoints import Access
from analyzers.core.errors import InvalidCheckpoint, InvalidRequest, ModelTooLarge
from analyzers.language_models.model_failures import explaining_failures, running
from tests.cases import few
from tests.language_models.repositories import files, written


@pytest.fixture(scope="module")
def contradictory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its heads give 32 numbers together, and what follows takes 24: the weights are those that config.json describes."""
    config = HeliumConfig(
        vocab_size=512, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8
    )
    folder = tmp_path_factory.mktemp("models") / "contradictory"
    written(folder, {name: content for name, content in files().items() if "token" in name or name.endswith("_map.json")})
    HeliumForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("analyze", "request_of"),
    few(
        [
            (gradient_conflict.analyze, lambda model: gradient_conflict.ConflictRequest(model=model, samples=3)),
            (exit_feedback.analyze, lambda model: exit_feedback.ExitRequest(model=model, samples=3)),
            (precision_variants.analyze, lambda model: precision_variants.PrecisionRequest(model=model)),
        ],
        {0, 2},
    ),
)
def test_a_model_whose_parts_do_not_fit_together(
    analyze: Callable[[Any, Access], Iterator[Any]], request_of: Callable[[str], Any], contradictory: str
) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"cannot be run: the parts that config\.json describes do not fit together"):
        list(analyze(request_of(contradictory), Access(local=True)))


def test_memory_that_is_spent() -> None:
    for around in (explaining_failures, running):
        with pytest.raises(ModelTooLarge, match="more memory than there is"), around():
            torch.empty(1 << 60, dtype=torch.uint8)


def test_an_operation_that_torch_lacks_in_a_dtype() -> None:
    matrix = torch.ones(2, 2, dtype=torch.float16)
    for variant, who in (("", "The model"), ("fp16", "Variant fp16")):
        with (
            pytest.raises(InvalidRequest, match=f"^{who} cannot run here: this build of torch has no fp16 form of .*Leave fp16 out"),
            explaining_failures(variant),
        ):
            torch.linalg.solve_triangular(matrix, matrix, upper=True)
