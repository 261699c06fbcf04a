"""Finds the tensors below each container of a pickle, in one pass over its objects."""

from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Any

from analyzers.checkpoints.formats.pickles.containers import Containers
from analyzers.checkpoints.formats.pickles.faults import Damaged
from analyzers.checkpoints.formats.pickles.objects import Foreign, Stored


def elements(tensor: Stored | Foreign) -> int | None:
    """Return the number of elements of a tensor, None if unknown."""
    return tensor.elements if isinstance(tensor, Foreign) else prod(tensor.shape)


class NestedTensors:
    """Maps each container that is reachable from ``root`` to the tensors below it; visits a container once, however often it is referenced.

    containers: those of the pickle; opened: how many objects of each unknown class are modules, or mappings that hold tensors; storages:
    keys of the storages of all tensors found. Raises Damaged for a container that contains itself.
    """

    def __init__(self, root: Any) -> None:
        self.containers = Containers()
        self.opened: Counter[str] = Counter()
        self.storages: set[str] = set()
        self._children: dict[int, list[tuple[Any, Any]]] = {}
        self._readable: set[int] = set()
        self._counted: set[int] = set()
        unfinished: set[int] = set()
        pending: list[tuple[Any, bool]] = [(root, False)] if self.containers.is_container(root) else []
        while pending:
            container, seen = pending.pop()
            if seen:
                unfinished.discard(id(container))
                children = [(key, value) for key, value in self.containers.items(container) if self._holds(value)]
                self._children[id(container)] = children
                if any(self.reads(value) for _, value in children):
                    self._readable.add(id(container))
                if type(container) is Foreign and (children or container.entries is None):
                    self.opened[container.name] += 1
            elif id(container) in unfinished:
                raise Damaged("a container in its pickle contains itself")
            elif id(container) not in self._children:
                unfinished.add(id(container))
                pending.append((container, True))
                pending += [
                    (value, False) for _, value in self.containers.items(container) if value and self.containers.is_container(value)
                ]

    def _holds(self, value: Any) -> bool:
        if type(value) is Stored:
            self.storages.add(value.key)
        return self.is_tensor(value) or bool(self._children.get(id(value)))

    def is_tensor(self, value: Any) -> bool:
        """Return whether ``value`` is a tensor, readable or not."""
        return type(value) is Stored or (type(value) is Foreign and value.fault is not None)

    def reads(self, value: Any) -> bool:
        """Return whether ``value`` is a readable tensor, or a container that holds one."""
        return type(value) is Stored or id(value) in self._readable

    def children(self, container: Any) -> list[tuple[Any, Any]]:
        """Return (key, value) of each entry of a container that is a tensor, or holds one."""
        return self._children[id(container)]

    def sizes(self, values: Iterable[Any]) -> list[int | None]:
        """Return the number of elements of every tensor below ``values`` that no earlier call has counted."""
        found = []
        pending = list(values)
        while pending:
            value = pending.pop()
            if id(value) in self._counted:
                continue
            self._counted.add(id(value))
            if self.is_tensor(value):
                found.append(elements(value))
            else:
                pending += [child for _, child in self.children(value)]
        return found
