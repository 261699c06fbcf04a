"""Which layers' graphs are kept for the backward pass, and how large they are estimated to be."""

import gc

import pytest
import torch

from analyzers.core import limits
from analyzers.precision_variants import staged_pass as runs
from analyzers.precision_variants.losses import cross_entropy
from analyzers.precision_variants.model_parts import ModelParts
from analyzers.precision_variants.saved_graphs import Graph
from analyzers.precision_variants.staged_pass import PassOptions, StagedPass
from analyzers.precision_variants.variants import PRESETS
from tests.cases import few
from tests.language_models.architectures import ARCHITECTURES, VOCABULARY, build

TOKENS = torch.randint(3, VOCABULARY, (2, 10), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def made() -> StagedPass:
    return StagedPass(ModelParts.of(build(ARCHITECTURES["llama"], "sdpa", torch.float32)), TOKENS, PassOptions(PRESETS["bf16"], "sdpa"))


@pytest.fixture
def graphs(made: StagedPass, monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Every layer that runs from now on, as long as somebody else keeps it."""
    found: list[Graph] = []

    def ran(*given: object) -> object:
        result = own(*given)  # type: ignore[arg-type]
        found.append(result[0])
        return result

    own = StagedPass._run_layer
    monkeypatch.setattr(runs.StagedPass, "_run_layer", ran)
    return found


def test_the_size_of_a_graph_is_that_of_what_autograd_saved(made: StagedPass, graphs: list[Graph]) -> None:
    """Against a walk through the nodes of the last layer's graph and what each of them holds."""
    list(made.forward())
    graph = graphs[-1]
    held = [leaf.tensor for leaf in graph.leaves]
    nodes = [graph.output.grad_fn]
    for node in nodes:
        for name in (name for name in dir(node) if name.startswith("_saved_")):
            saved = getattr(node, name)
            held += [value for value in (saved if isinstance(saved, tuple | list) else (saved,)) if isinstance(value, torch.Tensor)]
        nodes += [below for below, _ in node.next_functions if below is not None and below not in nodes]  # type: ignore[union-attr]
    own = {parameter.untyped_storage().data_ptr() for parameter in made.anatomy.model.parameters()}
    storages = [tensor.untyped_storage() for tensor in held]
    expected = {storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() not in own}
    assert graph.nbytes == sum(expected.values()) > sum(leaf.tensor.nbytes for leaf in graph.leaves) > 0


@pytest.mark.parametrize("room", few([0, 1, 2], {1}))
def test_layers_are_kept_as_far_as_there_is_room(made: StagedPass, graphs: list[Graph], room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    list(made.forward())
    layers = len(made.anatomy.layers)
    size = graphs[-1].nbytes
    monkeypatch.setattr(limits, "PRECISION_KEPT_BYTES", (room + 1) * size + size // 2 if room else 0)
    again = StagedPass(made.anatomy, TOKENS, made.options)
    graphs.clear()
    list(again.forward())
    assert [graph.layer for graph in graphs] == list(range(layers))
    graphs.clear()
    coefficients = cross_entropy(again.log_p).coefficients
    list(again.backward(coefficients, 1.0))
    assert [graph.layer for graph in graphs] == list(reversed(range(max(0, layers - 1 - room))))
    del graphs[:]
    gc.collect()
    list(again.backward(coefficients, 1.0))  # nothing is kept any more, and nothing needed that was
    assert [graph.layer for graph in graphs] == list(reversed(range(layers)))
