"""Autograd graphs of the last layers, kept for the backward pass within a memory limit."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor
from torch.autograd.graph import GradientEdge, saved_tensors_hooks

from analyzers.precision_variants.variant_weights import Leaf


@dataclass(frozen=True, eq=False, slots=True)
class Graph:
    """The autograd graph of one layer: input, output, weights, and the edges at which the gradients of its modules' outputs arrive.

    edges: with the module's name, once for each time that it ran. nbytes: held in addition to the
    model: tensors saved by autograd, and weights that are cast copies.
    """

    layer: int
    hidden: Tensor
    output: Tensor
    leaves: list[Leaf]
    edges: list[tuple[str, GradientEdge]]
    nbytes: int


@contextmanager
def saved_bytes(leaves: list[Leaf]) -> Iterator[dict[int, int]]:
    """Within the context, the storages that autograd saves are recorded by address, with their sizes; the model's own are left out."""
    own = {stored.untyped_storage().data_ptr() for leaf in leaves if (stored := leaf.module._parameters[leaf.key]) is not None}
    sizes: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # an output that saved itself would never be freed

    for leaf in leaves:
        record(leaf.tensor)
    with saved_tensors_hooks(record, lambda tensor: tensor):
        yield sizes


@dataclass(slots=True)
class SavedGraphs:
    """The graphs of the last layers: always the last one, and as many before it as fit into ``most`` bytes.

    Of a model whose layers are read one at a time only the last: a graph holds its layer's weights.
    """

    most: int
    _graphs: deque[Graph] = field(default_factory=deque)

    def make_room(self) -> None:
        """Drop the oldest graphs until another of the last one's size fits. Call before a layer runs."""
        expected = self._graphs[-1].nbytes if self._graphs else 0
        while self._graphs and sum(graph.nbytes for graph in self._graphs) + expected > self.most:
            self._graphs.popleft()

    def keep(self, graph: Graph) -> None:
        """Keep a layer's graph."""
        self._graphs.append(graph)

    def take(self, layer: int) -> Graph | None:
        """Remove and return a layer's graph, None if it was dropped."""
        return self._graphs.pop() if self._graphs and self._graphs[-1].layer == layer else None
