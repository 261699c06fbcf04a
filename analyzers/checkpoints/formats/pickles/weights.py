"""Lists the tensors below the object of a pickle, selects the weights among them, and names them."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from analyzers.checkpoints.formats.pickles.machine import Machine
from analyzers.checkpoints.formats.pickles.makers import RESAVE
from analyzers.checkpoints.formats.pickles.objects import DTYPES, Damaged, Excess, Global, Opaque, Pairs, Refused, Stored
from analyzers.checkpoints.formats.safetensors_header import Omitted
from analyzers.checkpoints.reference import quoted_names
from analyzers.checkpoints.words import WORDS
from analyzers.core import limits
from analyzers.core.notes import Note

# Keys under which trainers store the weights in a larger dict, the most likely first; averages are read if there is nothing else.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params")
_AVERAGES = ("ema", "ema_state_dict", "model_ema", "state_dict_ema")
# Keys of training state; and of copies of a model, next to a wrapper.
_STATE = re.compile(
    r"(.*_)?(optim\w*|sched\w*|lr_sched\w*|scaler|amp|rng|rng_states?|random_states|loops|callbacks|criterion|metrics?|losse?s?|extra_state)"
    r"|ema|ema_state_dict|model_ema|state_dict_ema|task_state|epoch|(global_)?steps?|iterations?|num_updates|args|config|cfg|hyper_parameters"
)
_COPIES = re.compile(r"(?:^|_)(?:ema|swa|teacher|shadow|averaged?|best|last|optim\w*|sched\w*)(?:_|$)")
_SCRIPT = "__torch__."  # the classes of TorchScript
_MODULE = ("_parameters", "_buffers", "_modules")
_WALKED = 4  # children visited, in multiples of the opcodes: each opcode makes at most one, and ties are visited again
_PARTS = 8  # members of a tuple key that are named
_LARGEST = 1 << 63  # largest number that may be a key
_MOST_NAMES, _NAME_LENGTH = 100, 200  # unknown classes that are listed, and characters of a name
_MOST_ROWS = 50  # rows for tensors that are not read

Path = tuple[str, ...]
Found = tuple[Path, Stored | Opaque]


class Weights(NamedTuple):
    """The selected weights.

    tensors: name -> tensor, in the order of the file; omitted: tensors that are not read; notes: remarks for the reader; opaque: unknown
    classes and functions that the pickle calls, except classes of modules that were read.
    """

    tensors: dict[str, Stored]
    omitted: tuple[Omitted, ...]
    notes: list[Note]
    opaque: tuple[str, ...]


def weights(root: Any, machine: Machine) -> Weights:
    """Select the weights in ``root``, the object of a pickle.

    The weights are a tensor, a list of tensors, or a state dict: a mapping from names to tensors, or a module that was pickled whole. A
    state dict may be nested in another mapping (``{"model": {...}, "optimizer": {...}}``); keys of mappings and lists inside it are joined
    with dots. Raises Refused if there is no container of tensors, or if none can be read; Damaged; Excess.
    """
    if type(root) is Stored or (type(root) is Opaque and root.fault):
        root = Pairs([("tensor", root)])
    walk = _Walk(machine.executed)
    every = list(walk.tensors(root))
    notes: list[Note] = []
    chosen, rest = _selected(every, walk.modules, notes)
    found: dict[str, Stored] = {}
    faulty: dict[str, Stored | Opaque] = {}
    for name, tensor in _named(chosen, notes):
        if type(tensor) is Stored and not _fault(tensor):
            found[name] = tensor
        else:
            faulty[name] = tensor
    opaque = Counter(machine.opaque) - walk.opened
    if faulty and not found:
        raise Refused(f"holds {_fault(next(iter(faulty.values())))}.")
    if opaque and not found:
        raise Refused(f"holds no tensors but in values of unknown types ({quoted_names([*opaque])}), which were not loaded: {RESAVE}.")
    if not found and (not isinstance(root, Pairs | list | tuple | Opaque)):
        raise Refused("holds no state dict (a mapping from names to tensors): save model.state_dict(), best as safetensors.")
    names = tuple(name[:_NAME_LENGTH] for name in [*opaque][:_MOST_NAMES])
    if opaque:
        notes.append(WORDS.note("opaque", values=opaque.total(), classes=names))
    seen = {tensor.key for _, tensor in every if type(tensor) is Stored}
    hidden = [storage.nbytes for key, storage in machine.storages.items() if key not in seen]
    if hidden:
        notes.append(WORDS.note("hidden", storages=len(hidden), bytes=sum(hidden)))
    return Weights(found, tuple(_omitted(faulty, rest, {id(tensor) for _, tensor in chosen})), notes, names)


class _Walk:
    """Visits the containers below an object. opened: how many objects of each unknown class held tensors; modules: paths of modules.

    A short pickle may refer to its containers so often that a walk would not end: visits are charged to one budget.
    """

    def __init__(self, opcodes: int) -> None:
        self.opened: Counter[str] = Counter()
        self.modules: set[Path] = set()
        self._left = _WALKED * opcodes
        self._known: set[int] = set()

    def tensors(self, root: Any) -> Iterator[Found]:
        """Yield every tensor below ``root``, also unreadable ones, with the keys that lead to it, as text. Raises Excess, Damaged."""
        keys: list[str] = []
        pending = [self._children(root, keys)]
        while pending:
            for key, value in pending[-1]:
                if type(value) is Stored or (type(value) is Opaque and value.fault):
                    self._charge(keys)
                    yield (*keys, _text(key)), value
                elif type(value) in (Pairs, list, tuple, Opaque):
                    if len(pending) >= limits.PICKLE_DEPTH:
                        raise Excess(f"nests its tensors deeper than {limits.PICKLE_DEPTH:,} levels.")
                    keys.append(_text(key))
                    pending.append(self._children(value, keys))
                    break
            else:
                pending.pop()
                del keys[-1:]

    def _children(self, value: Any, keys: list[str]) -> Iterator[tuple[Any, Any]]:
        """Return the entries of a container; of a module that was pickled whole, its parameters, buffers and children."""
        if type(value) is Pairs:
            self._charge(value)
            return value.entries()
        if type(value) in (list, tuple):
            self._charge(value)
            return iter(enumerate(value))
        return iter(self._opened(value, keys)) if type(value) is Opaque else iter(())

    def _opened(self, value: Opaque, keys: list[str]) -> list[tuple[Any, Any]]:
        state = value.state[0] if type(value.state) is tuple and value.state else value.state  # the second part holds slots
        children: list[tuple[Any, Any]] | None = None
        if type(state) is Pairs:
            self._charge(state)
            if value.name.startswith(_SCRIPT):
                children = [(key, each) for key, each in state.entries() if type(each) in (Stored, Opaque)]
            else:
                named = {key: each for key, each in state if type(key) is str}
                if all(type(named.get(part)) is Pairs for part in _MODULE):
                    transient = named.get("_non_persistent_buffers_set")
                    self._charge(transient if type(transient) is list else ())
                    left_out = {name for name in transient if type(name) is str} if type(transient) is list else set()
                    for part in _MODULE:
                        self._charge(named[part])
                    children = [
                        (key, each)
                        for part in _MODULE
                        for key, each in named[part].entries()
                        if not (part == "_buffers" and type(key) is str and key in left_out)
                    ]
        if children is not None:
            self.modules.add(tuple(keys))
        elif value.entries is not None:
            self._charge(value.entries)
            children = list(value.entries.entries())
        if children is not None and id(value) not in self._known:
            self._known.add(id(value))
            self.opened[value.name] += 1
        return children or []

    def _charge(self, items: Any) -> None:
        self._left -= 1 + len(items)
        if self._left < 0:
            raise Excess("has objects that share their contents too often.")


def _fault(tensor: Stored | Opaque) -> str:
    """Explain why ``tensor`` is not read; "" if it is."""
    if type(tensor) is Opaque:
        return tensor.fault
    assert type(tensor) is Stored
    known = DTYPES.get(tensor.dtype)
    if known is None or (known == "F4" and tensor.strides is not None):
        return f"a tensor of dtype {tensor.dtype}, whose values Mantissa does not read"
    return ""


def _omitted(faulty: Mapping[str, Stored | Opaque], rest: Iterable[Found], counted: set[int]) -> Iterator[Omitted]:
    """Yield a row for the weights that cannot be read, and one for each key next to the weights. counted: identities of the weights."""
    if faulty:
        yield _row(next(iter(faulty)), [*faulty.values()])
    beside: dict[str, list[Stored | Opaque]] = {}
    for path, tensor in rest:
        if id(tensor) not in counted:
            counted.add(id(tensor))
            beside.setdefault(path[0], []).append(tensor)
    rows = list(beside.items())
    yield from (_row(name, tensors, weights=False) for name, tensors in rows[:_MOST_ROWS])
    if others := [tensor for _, tensors in rows[_MOST_ROWS:] for tensor in tensors]:
        yield _row("other tensors", others, weights=False)


def _row(name: str, tensors: list[Stored | Opaque], weights: bool = True) -> Omitted:
    """Describe tensors that are not read, by the name of the first; their elements are None if some are unknown."""
    sizes = [tensor.elements for tensor in tensors if type(tensor) is Stored]
    return Omitted(name[:_NAME_LENGTH], len(tensors), sum(sizes) if len(sizes) == len(tensors) else None, weights)


def _selected(every: list[Found], modules: set[Path], notes: list[Note]) -> tuple[list[Found], list[Found]]:
    """Return the tensors of the state dict, with their paths in it, and those next to it.

    The state dict is the whole object, or what is under the key of a wrapper, or of a wrapper that is that wrapper's only entry. In a
    module, a child called "model" is an ordinary child and no wrapper.
    """
    prefix: Path = ()
    beside: list[Found] = []
    while prefix not in modules:
        inside = {path[0] for path, _ in every if len(path) > 1}
        wrapper = next((name for name in _WRAPPERS if name in inside), None)
        model = {path[0] for path, tensor in every if not _is_beside(path[0], wrapper) and not (wrapper and _counts(path, tensor))}
        if not prefix and every and not model:
            wrapper = next((name for name in _AVERAGES if name in inside), None)
        if wrapper is None or (not all(key in _WRAPPERS for key in model) if not prefix else len({path[0] for path, _ in every}) > 1):
            break
        beside += [each for each in every if each[0][0] != wrapper]
        every = [(path[1:], tensor) for path, tensor in every if path[0] == wrapper]
        notes.append(WORDS.note("nested", key=wrapper))
        prefix = (*prefix, wrapper)
    else:
        return every, beside
    kept = [each for each in every if prefix or not _is_beside(each[0][0], wrapper)]
    return (kept, beside + [each for each in every if not prefix and _is_beside(each[0][0], wrapper)]) if kept else (every, beside)


def _is_beside(key: str, wrapper: str | None) -> bool:
    """Return whether the value under ``key`` is not part of the weights. wrapper: the key next to it under which weights usually are."""
    return bool(_STATE.fullmatch(key) or (wrapper and key not in _WRAPPERS and _COPIES.search(key)))


def _counts(path: Path, tensor: Stored | Opaque) -> bool:
    """Return whether a tensor at the top is a single number, such as a step counter, or cannot be read."""
    return type(tensor) is not Stored or (len(path) == 1 and all(length == 1 for length in tensor.shape))


def _named(tensors: Iterable[Found], notes: list[Note]) -> Iterator[tuple[str, Stored | Opaque]]:
    """Give each tensor a unique name: the second tensor of a name gets "#2", and a note says so."""
    counts: Counter[str] = Counter()
    taken: set[str] = set()
    renamed, length = list[str](), 0
    for path, tensor in tensors:
        name = own = ".".join(path)
        if len(name) > limits.TENSOR_NAME_LENGTH:
            raise Excess(f"has a tensor's name of more than {limits.TENSOR_NAME_LENGTH:,} characters.")
        while own in taken:
            counts[name] += 1
            own = f"{name}#{counts[name] + 1}"
        if own != name:
            renamed.append(own)
        taken.add(own)
        length += len(own)
        if length > limits.HEADER_BYTES or len(taken) > limits.TENSORS:
            raise Excess(f"names more than {limits.TENSORS:,} tensors, or with more than {limits.HEADER_BYTES:,} characters.")
        yield own, tensor
    if renamed:
        notes.append(WORDS.note("renumbered", tensors=len(renamed), name=renamed[0]))


def _text(key: Any) -> str:
    """Convert ``key`` to a part of a tensor's name: strings and numbers unchanged, a value of an unknown class as the class's name."""
    if type(key) is str:
        return key
    if type(key) is bytes:
        return key.decode("ascii", "backslashreplace")
    if type(key) is tuple:
        parts = ["(...)" if type(part) is tuple else _text(part) for part in key[:_PARTS]]
        return f"({', '.join([*parts, *(['...'] if len(key) > _PARTS else [])])})"
    if key is None or type(key) in (bool, float) or (type(key) is int and abs(key) < _LARGEST):
        return str(key)
    if type(key) in (list, Pairs):
        raise Damaged("a mapping in its pickle has a list or a mapping as its key")
    return f"<{key.name}>" if isinstance(key, Opaque | Global) and key.name != "?" else "?"
