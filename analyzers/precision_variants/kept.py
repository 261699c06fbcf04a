"""Autograd graphs of the last layers, kept for the backward pass within a memory limit."""

from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge

from analyzers import limits
from analyzers.precision_variants.weights import Leaf


@dataclass(frozen=True, eq=False, slots=True)
class Graph:
    """The autograd graph of one layer: input, output, weights, and the edges at which the gradients of its modules' outputs arrive."""

    layer: int
    hidden: Tensor
    output: Tensor
    leaves: list[Leaf]
    edges: dict[str, GradientEdge]

    def nbytes(self) -> int:
        """Bytes held in addition to the model: tensors saved by autograd, and weights that are cast copies."""
        stored = [leaf.module._parameters[leaf.key] for leaf in self.leaves]
        own = {parameter.untyped_storage().data_ptr() for parameter in stored if parameter is not None}
        held = [leaf.tensor for leaf in self.leaves]
        pending = [node for node in (self.output.grad_fn,) if node is not None]
        seen = set(pending)
        while pending:
            node = pending.pop()
            for name in _saved(type(node)):
                saved = getattr(node, name)
                held += [value for value in (saved if isinstance(saved, tuple | list) else (saved,)) if isinstance(value, Tensor)]
            inputs = [below for below, _ in node.next_functions if below is not None and below not in seen]
            pending += inputs
            seen.update(inputs)
        storages = [tensor.untyped_storage() for tensor in held]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() not in own}.values())


@dataclass(slots=True)
class KeptGraphs:
    """The graphs of the last layers: always the last one, and as many before it as fit into ``PRECISION_KEPT_BYTES``."""

    _graphs: deque[tuple[Graph, int]] = field(default_factory=deque)

    def make_room(self) -> None:
        """Drop the oldest graphs until another of the last one's size fits. Call before a layer runs."""
        expected = self._graphs[-1][1] if self._graphs else 0
        while self._graphs and sum(nbytes for _, nbytes in self._graphs) + expected > limits.PRECISION_KEPT_BYTES:
            self._graphs.popleft()

    def keep(self, graph: Graph) -> None:
        """Keep a layer's graph."""
        self._graphs.append((graph, graph.nbytes()))

    def take(self, layer: int) -> Graph | None:
        """Remove and return a layer's graph, None if it was dropped."""
        return self._graphs.pop()[0] if self._graphs and self._graphs[-1][0].layer == layer else None


@cache
def _saved(kind: type[Any]) -> tuple[str, ...]:
    """Attributes of a kind of node that hold what it saved: tensors, None, numbers and lists."""
    return tuple(name for name in dir(kind) if name.startswith("_saved_") or name == "saved_tensors")
