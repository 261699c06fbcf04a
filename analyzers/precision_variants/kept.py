"""Layers that ran forward and are kept as they are for the way back, as far as they take little memory."""

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
    """A layer that ran for its gradients: what entered and left, its weights, and where the gradients of its modules' results arrive."""

    layer: int
    hidden: Tensor
    output: Tensor
    leaves: list[Leaf]
    edges: dict[str, GradientEdge]

    def nbytes(self) -> int:
        """Bytes of what it holds beside the model: tensors saved for the way back, and weights that are not the model's own."""
        stored = [leaf.module._parameters[leaf.key] for leaf in self.leaves]
        own = {parameter.untyped_storage().data_ptr() for parameter in stored if parameter is not None}
        held = [leaf.tensor for leaf in self.leaves]
        waiting = [node for node in (self.output.grad_fn,) if node is not None]
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            for name in _saved(type(node)):
                saved = getattr(node, name)
                held += [each for each in (saved if isinstance(saved, tuple | list) else (saved,)) if isinstance(each, Tensor)]
            further = [each for each, _ in node.next_functions if each is not None and each not in seen]
            waiting += further
            seen.update(further)
        storages = [each.untyped_storage() for each in held]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() not in own}.values())


@dataclass(slots=True)
class KeptGraphs:
    """The graphs of the last layers that ran: the last of all, and as many before it as fit into ``PRECISION_KEPT_BYTES``."""

    _graphs: deque[tuple[Graph, int]] = field(default_factory=deque)

    def make_room(self) -> None:
        """To be called before a layer runs, which is taken to be as large as the one before it."""
        another = self._graphs[-1][1] if self._graphs else 0
        while self._graphs and sum(nbytes for _, nbytes in self._graphs) + another > limits.PRECISION_KEPT_BYTES:
            self._graphs.popleft()

    def keep(self, graph: Graph) -> None:
        """Keep one that ran."""
        self._graphs.append((graph, graph.nbytes()))

    def take(self, layer: int) -> Graph | None:
        """Give one away, if it is here."""
        return self._graphs.pop()[0] if self._graphs and self._graphs[-1][0].layer == layer else None


@cache
def _saved(kind: type[Any]) -> tuple[str, ...]:
    """The attributes of a kind of node that are tensors it saved, or None, numbers and lists."""
    return tuple(name for name in dir(kind) if name.startswith("_saved_") or name == "saved_tensors")
