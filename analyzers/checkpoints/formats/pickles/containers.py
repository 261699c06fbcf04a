"""Reads the items of containers that may hold tensors: mappings, lists, tuples, sets, and modules that were pickled whole.

A module is an object whose state has ``_parameters``, ``_buffers`` and ``_modules``, whatever its class, and an object of TorchScript is
one whose class is in ``__torch__``. Their tensors are built by known constructors, so their class is not needed to read them. Nor is the
class of an unknown subclass of dict needed to read its items. Any other object of an unknown class is no container.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from analyzers.checkpoints.formats.pickles.faults import Excess
from analyzers.checkpoints.formats.pickles.objects import Entries, Foreign, Members, Stored
from analyzers.core import limits

_SCRIPT = "__torch__."
_PARAMETERS, _BUFFERS, _MODULES, _TRANSIENT = "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"

Items = Iterable[tuple[Any, Any]]


class Containers:
    """The containers of one pickle."""

    def __init__(self) -> None:
        self._foreign: dict[int, list[tuple[Any, Any]] | None] = {}
        self._opened: set[int] = set()  # identities of the item lists that were read
        self._steps = 0

    def is_container(self, value: Any) -> bool:
        """Return whether ``value`` is a container, possibly an empty one."""
        return type(value) in (Entries, Members, list, tuple) or (type(value) is Foreign and self._inside(value) is not None)

    def is_mapping(self, value: Any) -> bool:
        """Return whether ``value`` is a container whose items have names."""
        return type(value) in (Entries, Foreign) and self.is_container(value)

    def items(self, container: Any) -> Items:
        """Return keys and values of a container. As in a dict, the last of equal names counts, at the position of the first."""
        if type(container) is Foreign:
            return self._inside(container) or []
        return distinct(container) if type(container) is Entries else enumerate(container)

    def _inside(self, value: Foreign) -> list[tuple[Any, Any]] | None:
        """Return the items of a value of an unknown class, read once; None if it is no container."""
        if id(value) not in self._foreign:
            self._foreign[id(value)] = None if value.fault else self._open(value)
        return self._foreign[id(value)]

    def _open(self, value: Foreign) -> list[tuple[Any, Any]] | None:
        state = value.state[0] if type(value.state) is tuple and value.state else value.state  # the second part holds slots
        if type(state) is Entries:
            if value.name.startswith(_SCRIPT):
                return [(key, each) for key, each in distinct(self._counted(state)) if type(each) in (Stored, Foreign)]
            named = {key: each for key, each in zip(state[::2], self._counted(state)[1::2], strict=True) if type(key) is str}
            parts = [named.get(part) for part in (_PARAMETERS, _BUFFERS, _MODULES)]
            if all(type(part) is Entries for part in parts):
                transient = named.get(_TRANSIENT)
                left_out = {name for name in self._counted(transient) if type(name) is str} if type(transient) is Members else set()
                return [
                    (key, each)
                    for part in parts
                    for key, each in distinct(self._counted(part))
                    if not (part is parts[1] and type(key) is str and key in left_out)
                ]
        return list(distinct(self._counted(value.entries))) if value.entries is not None else None

    def _counted(self, items: Any) -> Any:
        """Return ``items`` and count repeated reads: values may share them, so a short pickle could cause endless reads."""
        self._steps += len(items) if id(items) in self._opened else 0
        self._opened.add(id(items))
        if self._steps > limits.PICKLE_OPCODES:
            raise Excess(f"has objects that share more than {limits.PICKLE_OPCODES:,} attributes.")
        return items


def distinct(entries: Entries) -> Iterator[tuple[Any, Any]]:
    """Return keys and values of a mapping. The last of equal names counts, at the position of the first."""
    found: dict[Any, Any] = {}
    for number, key in enumerate(entries[::2]):
        found[key if type(key) is str else number] = (key, entries[2 * number + 1])
    return iter(found.values())
