"""Selects the weights among the tensors of a pickled file, and their names."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from analyzers import limits
from analyzers.checkpoints.pickles.containers import Containers
from analyzers.checkpoints.pickles.faults import RESAVE, Damaged, Excess, Refused
from analyzers.checkpoints.pickles.objects import Foreign, Stored, Unknown
from analyzers.checkpoints.reference import quoted
from analyzers.terminal import plural

# Keys under which trainers save the weights in a larger dict, the most likely first.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params")
# Their other keys: tensors there are not weights, or are copies of them.
_BESIDE = frozenset({
    "optimizer", "optimizers", "optimizer_state", "optimizer_states", "optimizer_state_dict", "optim", "optim_state_dict",
    "last_optimizer_state", "optimizer_history", "scheduler", "schedulers", "scheduler_state_dict", "lr_scheduler", "lr_schedulers",
    "lr_scheduler_state_dict", "scaler", "grad_scaler", "amp", "rng", "rng_state", "rng_states", "random_rng_state", "np_rng_state",
    "torch_rng_state", "cuda_rng_state", "random_states", "loops", "callbacks", "epoch", "step", "steps", "global_step", "iteration",
    "iterations", "num_updates", "loss", "losses", "best_loss", "best_metric", "metrics", "args", "config", "cfg", "hyper_parameters",
    "criterion", "loss_fn", "task_state", "extra_state", "ema", "ema_state_dict", "model_ema", "state_dict_ema", "param_shapes",
    "buffer_names", "ds_config", "version",
})  # fmt: skip
# Averages of the weights, which are read if the weights themselves are not in the file.
_AVERAGES = ("ema", "ema_state_dict", "model_ema", "state_dict_ema")
_NAMED = 3
_LARGEST = 1 << 63  # number as a key
_MOST_NAMES, _NAME_LENGTH = 100, 200  # unknown classes that are listed


class Weights(NamedTuple):
    """tensors: name -> tensor, in the order of the file; notes: remarks for the reader; opaque: unknown classes and functions that the
    pickle calls, other than those of modules that were read.
    """

    tensors: dict[str, Stored]
    notes: list[str]
    opaque: tuple[str, ...]


def weights(root: Any, foreign: Mapping[str, int], storages: Mapping[str, int]) -> Weights:
    """Select the weights in ``root``.

    A state dict is a mapping from names to tensors, or a module that was pickled whole. It may be nested in another mapping
    (``{"model": {...}, "optimizer": {...}}``); keys of mappings and lists inside it are joined with dots. Anything but tensors is skipped.

    foreign: how many values each unknown class or function would have made; storages: key -> bytes.
    Raises Refused if there is no mapping, if a weight is built by something unknown, or if all tensors are inside unknown values; Damaged;
    Excess.
    """
    below = _Below(root)
    if not below.containers.is_mapping(root):
        if isinstance(root, Foreign | Unknown):
            raise Refused(f"holds an object of {quoted(root.name, 200)}, which was not loaded, and no state dict: {RESAVE}.")
        raise Refused("holds no state dict (a mapping from names to tensors): save model.state_dict(), best as safetensors.")
    notes: list[str] = []
    found: dict[str, Stored] = {}
    nameless = length = 0
    for name, tensor in _flat(_unwrapped(root, below, notes), below):
        if name is None:
            nameless += 1
            continue
        if name in found:
            raise Damaged(f"two tensors have the name {quoted(name)}")
        length += len(name)
        if length > limits.HEADER_BYTES:
            raise Excess(f"names its tensors with more than {limits.HEADER_BYTES:,} characters (MANTISSA_HEADER_BYTES).")
        found[name] = tensor
    opaque = Counter(foreign) - below.opened
    if nameless and not found:
        raise Damaged("a tensor's name is not text")
    if opaque and not found:
        raise Refused(f"holds no tensors but in values of unknown types ({_listed([*opaque])}), which were not loaded: {RESAVE}.")
    if below.opened:
        notes.append(f"Read from objects whose classes were not loaded: {_listed([*below.opened])}.")
    if opaque:
        count = opaque.total()
        were = "was not interpreted; the tensors next to it" if count == 1 else "were not interpreted; the tensors next to them"
        notes.append(f"{plural(count, 'value')} of unknown {'type' if count == 1 else 'types'} ({_listed([*opaque])}) {were} were read.")
    if nameless:
        notes.append(f"Not read: {plural(nameless, 'tensor')} of a pickled file with a key that is not text.")
    hidden = [nbytes for key, nbytes in storages.items() if key not in below.storages]
    if hidden:
        notes.append(f"Not read: {plural(len(hidden), 'storage')} with {plural(sum(hidden), 'byte')}, inside attributes or unknown values.")
    return Weights(found, notes, tuple(name[:_NAME_LENGTH] for name in [*opaque][:_MOST_NAMES]))


class _Below:
    """The tensors below each container that is reachable from ``root``. Looks at each container once, however often it is referred to.

    containers: those of the pickle; opened: how many of each unknown class are modules, or mappings that hold tensors; storages: keys of
    the storages whose tensors were met. Raises Damaged for a container that contains itself.
    """

    def __init__(self, root: Any) -> None:
        self.containers = Containers()
        self.opened: Counter[str] = Counter()
        self.storages: set[str] = set()
        self._children: dict[int, list[tuple[Any, Any]]] = {}
        unfinished: set[int] = set()
        pending: list[tuple[Any, bool]] = [(root, False)] if self.containers.is_container(root) else []
        while pending:
            container, seen = pending.pop()
            if seen:
                unfinished.discard(id(container))
                children = [(key, value) for key, value in self.containers.items(container) if self._holds(value)]
                self._children[id(container)] = children
                if type(container) is Foreign and (children or container.entries is None):
                    self.opened[container.name] += 1
            elif id(container) in unfinished:
                raise Damaged("a container in its pickle contains itself")
            elif id(container) not in self._children:
                unfinished.add(id(container))
                pending.append((container, True))
                pending += [(value, False) for _, value in self.containers.items(container) if self.containers.is_container(value)]

    def _holds(self, value: Any) -> bool:
        if type(value) is Stored:
            self.storages.add(value.key)
            return True
        return (type(value) is Foreign and value.fault is not None) or bool(self._children.get(id(value)))

    def children(self, container: Any) -> list[tuple[Any, Any]]:
        """(key, value) of each entry of a container that holds tensors, or is one that cannot be read."""
        return self._children[id(container)]


def _unwrapped(root: Any, below: _Below, notes: list[str]) -> list[tuple[Any, Any]]:
    """The entries of the state dict: the children of ``root``, of the wrapper in it, or of a wrapper that is the only entry of that.

    The children of a module are its own: one that is called "model" is not a wrapper.
    """
    container, outermost = root, True
    while True:
        pairs = below.children(container)
        if type(container) is Foreign and container.entries is None:
            return pairs
        named = {key: value for key, value in pairs if type(key) is str}
        wrapper = next((name for name in _WRAPPERS if below.containers.is_mapping(named.get(name))), None)
        model = [(key, value) for key, value in pairs if _text(key) not in _BESIDE and not (wrapper and _is_single(value))]
        if outermost and pairs and not model:
            wrapper = next((name for name in _AVERAGES if below.containers.is_mapping(named.get(name))), None)
        if wrapper and (all(key in _WRAPPERS for key, _ in model) if outermost else len(pairs) == 1):
            rest = [_text(key) or "?" for key, _ in pairs if key != wrapper]
            notes.append(f"Weights were read from {quoted(wrapper)} of a pickled file{f'; left out: {_listed(rest)}' if rest else ''}.")
            container, outermost = named[wrapper], False
            continue
        if outermost and model and len(model) < len(pairs):
            rest = [key for key, _ in pairs if key in _BESIDE]
            notes.append(f"Left out of a pickled file: {_listed(rest)}.")
            return model
        return pairs


def _is_single(value: Any) -> bool:
    """Whether ``value`` is a tensor with one element, such as a step counter."""
    return type(value) is Stored and all(length == 1 for length in value.shape)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(quoted(name) for name in names[:_NAMED]) + more


def _flat(pairs: list[tuple[Any, Any]], below: _Below) -> Iterator[tuple[str | None, Stored]]:
    """Every tensor below ``pairs``, its keys joined with dots; the name is None if a key is not text. Raises Refused for one that
    cannot be read.
    """
    steps = 0
    pending: list[tuple[str | None, Iterator[tuple[Any, Any]]]] = [("", iter(pairs))]
    while pending:
        prefix, rest = pending[-1]
        for key, value in rest:
            steps += 1  # containers too: one that is referred to often is passed through often
            if steps > 2 * limits.TENSORS:
                raise Excess(f"names more than {limits.TENSORS:,} tensors (MANTISSA_TENSORS).")
            own = _text(key)
            name = None if prefix is None or own is None else prefix + own
            if name is not None and len(name) > limits.TENSOR_NAME_LENGTH:
                raise Excess(f"has a tensor's name of more than {limits.TENSOR_NAME_LENGTH:,} characters (MANTISSA_TENSOR_NAME_LENGTH).")
            if type(value) is Stored:
                yield name, value
                continue
            if type(value) is Foreign and value.fault:
                raise Refused(value.fault)
            if len(pending) >= limits.PICKLE_DEPTH:
                raise Excess(f"nests its tensors deeper than {limits.PICKLE_DEPTH:,} levels (MANTISSA_PICKLE_DEPTH).")
            pending.append((None if name is None else name + ".", iter(below.children(value))))
            break
        else:
            pending.pop()


def _text(key: Any) -> str | None:
    """The part of a tensor's name that ``key`` is: a text or a whole number, else None."""
    if type(key) is str:
        return key
    return str(key) if type(key) is int and abs(key) < _LARGEST else None
