"""Lists the tensors below the object of a pickle, selects the weights among them, and names them."""

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from analyzers.checkpoints.formats.faults import Damaged, Excess, Unsupported
from analyzers.checkpoints.formats.pickles.constructors import Opaque, Pairs, Stored, is_tensor
from analyzers.checkpoints.formats.pickles.machine import Budget, Machine
from analyzers.checkpoints.formats.safetensors_header import Omitted
from analyzers.checkpoints.reference import quoted, quoted_names
from analyzers.checkpoints.tensor import DTYPE_BITS
from analyzers.checkpoints.words import WORDS
from analyzers.core import limits
from analyzers.core.notes import Note

# Keys under which trainers store the weights next to other things, the most likely first.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params", "ema")
_SCRIPT = "__torch__."  # the classes of TorchScript
_DEPTH = 100  # containers within each other; state dicts have under 10 levels
_VISITS = 4  # per operation: they are faster than opcodes, and lists of numbers are long
_LARGEST = 1 << 63  # largest number that may be a key
_FEW = 8  # entries of an optimizer's state: "state", "param_groups" and those of wrappers
_MOST_NAMES, _NAME_LENGTH = 100, 200  # unknown classes that are listed, and characters of a name
_RESAVE = "in the program that wrote it, use safetensors.torch.save_model(model, 'model.safetensors')."

Path = tuple[str, ...]
Found = tuple[Path, Stored | Opaque]


def weights(root: Any, machine: Machine) -> tuple[dict[str, Stored], tuple[Omitted, ...], tuple[Note, ...]]:
    """Select the weights in ``root``, the object of a pickle: the tensors by name, what is left out, and remarks.

    The weights are a tensor, a list of tensors, a state dict (a mapping from names to tensors), or a program of TorchScript. A state dict
    may be nested in another mapping (``{"model": {...}, "optimizer": {...}}``); keys of mappings and lists inside it are joined
    with dots. Raises Unsupported if there are no tensors that can be read; Damaged; Excess.
    """
    walk = _Walk(machine.budget)
    walk.visit(root, ("tensor",) if is_tensor(root) else ())
    chosen, beside, prefix = _selected(root, walk.found)
    notes = [WORDS.note("nested", key=".".join(prefix))] if prefix else []
    named = _named(chosen)
    found = {name: tensor for name, tensor in named.items() if type(tensor) is Stored and tensor.dtype in DTYPE_BITS}
    faulty = {name: tensor for name, tensor in named.items() if name not in found}
    opaque = tuple(name[:_NAME_LENGTH] for name in machine.opaque if name not in walk.opened)[:_MOST_NAMES]
    if not found:
        kinds = (*(each.dtype if isinstance(each, Stored) else each.name for each in faulty.values()), *opaque)
        others = f", but {quoted_names(kinds)}" if kinds else ""
        raise Unsupported(f"holds no state dict (a mapping from names to tensors) that can be read{others}: {_RESAVE}")
    if opaque:
        notes.append(WORDS.note("opaque", classes=opaque))
    seen = {tensor.key for _, tensor in walk.found if type(tensor) is Stored}
    hidden = [storage.nbytes for key, storage in machine.storages.items() if key not in seen]
    if hidden:
        notes.append(WORDS.note("hidden", storages=len(hidden), bytes=sum(hidden)))
    return found, tuple(_omitted(faulty, beside, {tensor for _, tensor in chosen})), tuple(notes)


class _Walk:
    """Visits the containers below an object.

    found: the tensors; opened: classes of TorchScript whose objects were visited.

    A short pickle may refer to its containers so often that a walk would not end: visits are charged to the budget of the pickle.
    """

    def __init__(self, budget: Budget) -> None:
        self.found: list[Found] = []
        self.opened: set[str] = set()
        self._budget = budget

    def visit(self, value: Any, path: Path = ()) -> None:
        """Add the tensors below ``value``, also unreadable ones, with the keys that lead to it. Raises Excess."""
        self._budget.spend(1 + len(path))
        if len(path) > _DEPTH:
            raise Excess(f"nests its tensors deeper than {_DEPTH} levels.")
        if is_tensor(value):
            self.found.append((path, value))
            return
        for key, each in self._children(value):
            if type(each) in (Stored, Pairs, list, tuple, Opaque):
                self.visit(each, (*path, _text(key)))

    def _children(self, value: Any) -> Iterator[tuple[Any, Any]]:
        """Return the entries of a container; of an object of TorchScript, its parameters, buffers and modules."""
        if type(value) is Opaque:
            if not value.name.startswith(_SCRIPT):
                return iter(())
            self.opened.add(value.name)
            attributes = list(self._children(value.state if type(value.state) is Pairs else ()))
            return ((key, each) for key, each in attributes if type(key) is str and type(each) in (Stored, Opaque))
        self._budget.spend(len(value) // _VISITS if type(value) in (Pairs, list, tuple) else 0)
        if type(value) is Pairs:
            return value.entries()
        return enumerate(value) if type(value) in (list, tuple) else iter(())


def _text(key: Any) -> str:
    """Convert ``key`` to a part of a tensor's name: strings and numbers unchanged, "?" for anything else."""
    if type(key) is str:
        return key if key.isascii() else key.encode(errors="replace").decode()  # half surrogates cannot be encoded
    plain = key is None or type(key) in (bool, float) or (type(key) is int and abs(key) < _LARGEST)
    return str(key) if plain else "?"


def _selected(root: Any, every: list[Found]) -> tuple[list[Found], list[Found], Path]:
    """Return the tensors of the state dict with their paths in it, those beside it, and the keys that lead to it.

    The state dict is what is under the key of a wrapper, then under that of a wrapper that is the only key there. Without a wrapper it is
    the whole object but for the state of optimizers.
    """
    prefix: Path = ()
    beside: list[Found] = []
    while type(root) is Pairs:
        level = len(prefix)
        inside = {path[level] for path, _ in every if len(path) > level + 1}
        wrapper = next((name for name in _WRAPPERS if name in inside), None)
        rest = [found for found in every if found[0][level] != wrapper]
        inner = next((value for key, value in reversed(root) if key == wrapper), None)
        if wrapper is None or inner is None or (prefix and rest):
            break
        every = [found for found in every if found[0][level] == wrapper]
        root, beside, prefix = inner, beside + rest, (*prefix, wrapper)
    if not prefix and type(root) is Pairs:
        optimizers = {_text(key) for key, value in root if _is_optimizer(value)}
        kept = [found for found in every if found[0][0] not in optimizers]
        if kept:
            every, beside = kept, [found for found in every if found[0][0] in optimizers]
    return [(path[len(prefix) :], tensor) for path, tensor in every], beside, prefix


def _is_optimizer(value: Any) -> bool:
    """Return whether ``value`` is what an optimizer's state_dict() returns, or a list of these."""
    first = value[0] if type(value) is list and value else value
    keys = [key for key, _ in first] if type(first) is Pairs and len(first) < _FEW else []
    return "state" in keys and "param_groups" in keys


def _named(tensors: Iterable[Found]) -> dict[str, Stored | Opaque]:
    """Name each tensor by its path. Raises Damaged if two have one name, Excess."""
    named: dict[str, Stored | Opaque] = {}
    length = 0
    for path, tensor in tensors:
        name = ".".join(path)
        if name in named:
            raise Damaged(f"two of its tensors are called {quoted(name)}")
        named[name] = tensor
        length += len(name)
        if len(name) > limits.TENSOR_NAME_LENGTH or length > limits.HEADER_BYTES or len(named) > limits.TENSORS:
            raise Excess(f"names more than {limits.TENSORS:,} tensors, or one by more than {limits.TENSOR_NAME_LENGTH:,} characters.")
    return named


def _omitted(faulty: Mapping[str, Stored | Opaque], beside: Iterable[Found], counted: set[Stored | Opaque]) -> Iterator[Omitted]:
    """Yield a row for the weights that cannot be read, and one for each key beside the weights. counted: the weights."""
    if faulty:
        yield _row(next(iter(faulty)), list(faulty.values()), weights=True)
    rows: dict[str, list[Stored | Opaque]] = {}
    for path, tensor in beside:
        if tensor not in counted:
            counted.add(tensor)
            rows.setdefault(path[0], []).append(tensor)
    yield from (_row(key, tensors, weights=False) for key, tensors in rows.items())


def _row(name: str, tensors: list[Stored | Opaque], weights: bool) -> Omitted:
    """Describe tensors that are not read, by the name of the first; their elements are None if some are unknown."""
    known = all(type(tensor) is Stored for tensor in tensors)
    parameters = sum(prod(tensor.shape) for tensor in tensors if isinstance(tensor, Stored)) if known else None
    return Omitted(name[:_NAME_LENGTH], len(tensors), parameters, weights)
