"""Selects the weights among the tensors of a pickled file, and names them."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from analyzers.checkpoints.formats.pickles.faults import RESAVE, Damaged, Excess, Refused
from analyzers.checkpoints.formats.pickles.nested_tensors import NestedTensors, elements
from analyzers.checkpoints.formats.pickles.objects import DTYPES, Entries, Foreign, Stored, Unknown
from analyzers.checkpoints.formats.safetensors_header import Omitted
from analyzers.checkpoints.reference import quoted, quoted_names
from analyzers.checkpoints.words import WORDS
from analyzers.core import limits
from analyzers.core.notes import Note

# Keys under which trainers store the weights in a larger dict, the most likely first.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params")
# Other keys of such dicts, under which tensors are not weights, or are copies of them.
_BESIDE = frozenset({
    "optimizer", "optimizers", "optimizer_state", "optimizer_states", "optimizer_state_dict", "optim", "optim_state_dict",
    "last_optimizer_state", "optimizer_history", "scheduler", "schedulers", "scheduler_state_dict", "lr_scheduler", "lr_schedulers",
    "lr_scheduler_state_dict", "scaler", "grad_scaler", "amp", "rng", "rng_state", "rng_states", "random_rng_state", "np_rng_state",
    "torch_rng_state", "cuda_rng_state", "random_states", "loops", "callbacks", "epoch", "step", "steps", "global_step", "iteration",
    "iterations", "num_updates", "loss", "losses", "best_loss", "best_metric", "metrics", "args", "config", "cfg", "hyper_parameters",
    "criterion", "loss_fn", "task_state", "extra_state", "ema", "ema_state_dict", "model_ema", "state_dict_ema", "param_shapes",
    "buffer_names", "ds_config", "version",
})  # fmt: skip
# Averages of the weights, read if the weights themselves are missing.
_AVERAGES = ("ema", "ema_state_dict", "model_ema", "state_dict_ema")
# Words in keys of copies of a model, or of training state, next to a wrapper.
_COPIES = re.compile(r"(?:^|_)(?:ema|swa|teacher|shadow|averaged?|best|last|optim\w*|sched\w*)(?:_|$)")
_PARTS = 8  # members of a tuple key that are named
_LARGEST = 1 << 63  # largest number that may be a key
_MOST_NAMES, _NAME_LENGTH = 100, 200  # unknown classes that are listed, and characters of a name
_MOST_ROWS = 50  # rows for tensors that are not read


class Weights(NamedTuple):
    """The selected weights.

    tensors: name -> tensor, in the order of the file; omitted: tensors that are not read; notes: remarks for the reader; opaque: unknown
    classes and functions that the pickle calls, except classes of modules that were read.
    """

    tensors: dict[str, Stored]
    omitted: tuple[Omitted, ...]
    notes: list[Note]
    opaque: tuple[str, ...]


def weights(root: Any, foreign: Mapping[str, int], storages: Mapping[str, int]) -> Weights:
    """Select the weights in ``root``.

    The weights are a tensor, a list of tensors, or a state dict: a mapping from names to tensors, or a module that was pickled whole. A
    state dict may be nested in another mapping (``{"model": {...}, "optimizer": {...}}``); keys of mappings and lists inside it are joined
    with dots.

    foreign: how many values each unknown class or function would have created; storages: key -> bytes. Raises Refused if there is no
    container of tensors, or if none can be read; Damaged; Excess.
    """
    if type(root) is Stored or (type(root) is Foreign and root.fault):
        root = Entries(["tensor", root])
    below = NestedTensors(root)
    if not below.containers.is_container(root):
        if isinstance(root, Foreign | Unknown):
            raise Refused(f"holds an object of {quoted(root.name, 200)}, which was not loaded, and no state dict: {RESAVE}.")
        raise Refused("holds no state dict (a mapping from names to tensors): save model.state_dict(), best as safetensors.")
    notes: list[Note] = []
    chosen, rest = _unwrapped(root, below, notes)
    found: dict[str, Stored] = {}
    faulty: dict[str, Stored | Foreign] = {}
    for name, tensor in _named(_flat(chosen, below), notes):
        if _fault(tensor) is not None:
            faulty[name] = tensor
        elif type(tensor) is Stored:
            found[name] = tensor
    opaque = Counter(foreign) - below.opened
    if faulty and not found:
        raise Refused(f"holds {_fault(next(iter(faulty.values())))}.")
    if opaque and not found:
        raise Refused(f"holds no tensors but in values of unknown types ({quoted_names([*opaque])}), which were not loaded: {RESAVE}.")
    names = tuple(name[:_NAME_LENGTH] for name in [*opaque][:_MOST_NAMES])
    if opaque:
        notes.append(WORDS.note("opaque", values=opaque.total(), classes=names))
    hidden = [nbytes for key, nbytes in storages.items() if key not in below.storages]
    if hidden:
        notes.append(WORDS.note("hidden", storages=len(hidden), bytes=sum(hidden)))
    below.sizes([value for _, value in chosen])  # count the weights, also if other values refer to them
    omitted = [_row(next(iter(faulty)), [elements(each) for each in faulty.values()])] if faulty else []
    beside = [(_text(key), sizes) for key, value in rest if (sizes := below.sizes([value]))]
    omitted += [_row(name, sizes, weights=False) for name, sizes in beside[:_MOST_ROWS]]
    if others := [size for _, sizes in beside[_MOST_ROWS:] for size in sizes]:
        omitted.append(_row("other tensors", others, weights=False))
    return Weights(found, tuple(omitted), notes, names)


def _fault(tensor: Stored | Foreign) -> str | None:
    """Explain why ``tensor`` is not read; None if it is."""
    if type(tensor) is Foreign:
        return tensor.fault
    assert type(tensor) is Stored
    known = DTYPES.get(tensor.dtype.name)
    if known is None or (known == "F4" and tensor.strides is not None):
        return f"a tensor of dtype {tensor.dtype.name}, whose values Mantissa does not read"
    return None


def _row(name: str, sizes: list[int | None], weights: bool = True) -> Omitted:
    """Describe tensors that are not read, by the name of the first and the elements of each, None if unknown."""
    return Omitted(name[:_NAME_LENGTH], len(sizes), None if None in sizes else sum(size or 0 for size in sizes), weights)


def _named(flat: Iterable[tuple[str, Any]], notes: list[Note]) -> Iterator[tuple[str, Any]]:
    """Give each tensor a unique name: the second tensor of a name gets "#2", and a note says so."""
    counts: Counter[str] = Counter()
    taken: set[str] = set()
    renamed, length = list[str](), 0
    for name, tensor in flat:
        own = name
        while own in taken:
            counts[name] += 1
            own = f"{name}#{counts[name] + 1}"
        if own != name:
            renamed.append(own)
        taken.add(own)
        length += len(own)
        if length > limits.HEADER_BYTES:
            raise Excess(f"names its tensors with more than {limits.HEADER_BYTES:,} characters.")
        yield own, tensor
    if renamed:
        notes.append(WORDS.note("renumbered", tensors=len(renamed), name=renamed[0]))


Pairs = list[tuple[Any, Any]]


def _unwrapped(root: Any, below: NestedTensors, notes: list[Note]) -> tuple[Pairs, Pairs]:
    """Return the entries of the state dict, and those next to it.

    The state dict's entries are the children of ``root``, of the wrapper in it, or of a wrapper that is that wrapper's only entry. In a
    module, a child called "model" is an ordinary child and no wrapper.
    """
    container, outermost, beside = root, True, Pairs()
    while True:
        pairs = below.children(container)
        if type(container) is Foreign and container.entries is None:
            return pairs, beside
        named = {key: value for key, value in pairs if type(key) is str}
        wrapper = next((name for name in _WRAPPERS if below.containers.is_mapping(named.get(name))), None)
        chosen = [(key, value) for key, value in pairs if not _is_beside(key, wrapper)]
        model = [(key, value) for key, value in chosen if below.reads(value) and not (wrapper and _is_single(value))]
        if outermost and pairs and not model:
            wrapper = next((name for name in _AVERAGES if below.containers.is_mapping(named.get(name))), None)
        if wrapper and (all(key in _WRAPPERS for key, _ in model) if outermost else len(pairs) == 1):
            rest = [(key, value) for key, value in pairs if key != wrapper]
            notes.append(WORDS.note("nested", key=wrapper))
            container, outermost, beside = named[wrapper], False, [*beside, *rest]
            continue
        if outermost and chosen and len(chosen) < len(pairs):
            return chosen, [(key, value) for key, value in pairs if _is_beside(key, wrapper)]
        return pairs, beside


def _is_beside(key: Any, wrapper: str | None) -> bool:
    """Return whether the value under ``key`` is not part of the weights.

    wrapper: the key next to it under which weights are usually stored.
    """
    return type(key) is str and (key in _BESIDE or (wrapper is not None and key not in _WRAPPERS and bool(_COPIES.search(key))))


def _is_single(value: Any) -> bool:
    """Return whether ``value`` is a tensor with one element, such as a step counter."""
    return type(value) is Stored and all(length == 1 for length in value.shape)


def _flat(pairs: Pairs, below: NestedTensors) -> Iterator[tuple[str, Any]]:
    """Yield every tensor below ``pairs``, including unreadable ones, with its keys joined by dots."""
    steps = 0
    pending: list[tuple[str, Iterator[tuple[Any, Any]]]] = [("", iter(pairs))]
    while pending:
        prefix, rest = pending[-1]
        for key, value in rest:
            steps += 1  # containers count too: one that is referenced often is visited often
            if steps > 2 * limits.TENSORS:
                raise Excess(f"names more than {limits.TENSORS:,} tensors.")
            name = prefix + _text(key)
            if len(name) > limits.TENSOR_NAME_LENGTH:
                raise Excess(f"has a tensor's name of more than {limits.TENSOR_NAME_LENGTH:,} characters.")
            if below.is_tensor(value):
                yield name, value
                continue
            if len(pending) >= limits.PICKLE_DEPTH:
                raise Excess(f"nests its tensors deeper than {limits.PICKLE_DEPTH:,} levels.")
            pending.append((name + ".", iter(below.children(value))))
            break
        else:
            pending.pop()


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
    if type(key) in (list, Entries):
        raise Damaged("a mapping in its pickle has a list or a mapping as its key")
    return f"<{key.name}>" if isinstance(key, Foreign | Unknown) else "?"
