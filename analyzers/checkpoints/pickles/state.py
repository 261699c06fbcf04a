"""Selects the weights among the tensors of a pickled file, and their names."""

from collections.abc import Iterator
from typing import Any

from analyzers import limits
from analyzers.checkpoints.pickles.faults import Damaged, Excess, Refused
from analyzers.checkpoints.pickles.objects import Entries, Stored
from analyzers.checkpoints.reference import quoted

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
_NAMED = 3


def weights(root: Any) -> tuple[dict[str, Stored], list[str]]:
    """Name -> tensor, in the order of the file, and notes on what was excluded.

    A state dict is a mapping from names to tensors. It may be nested in another mapping (``{"model": {...}, "optimizer": {...}}``); the
    keys of mappings and lists inside it are joined with dots. Anything but tensors is skipped.
    Raises Refused if there is no mapping, Damaged, Excess.
    """
    if type(root) is not Entries:
        raise Refused("holds no state dict (a mapping from names to tensors): save model.state_dict(), best as safetensors.")
    below = _Below(root)
    notes: list[str] = []
    found: dict[str, Stored] = {}
    length = 0
    for name, tensor in _flat(_unwrapped(root, below, notes), below):
        if name in found:
            raise Damaged(f"two tensors have the name {quoted(name)}")
        length += len(name)
        if length > limits.HEADER_BYTES:
            raise Excess(f"names its tensors with more than {limits.HEADER_BYTES:,} characters (MANTISSA_HEADER_BYTES).")
        found[name] = tensor
    return found, notes


class _Below:
    """Of every container reachable from ``root``: its children that are tensors or hold some, with their keys.

    Each container is looked at once, however often it is referred to. Raises Damaged for one that contains itself.
    """

    def __init__(self, root: Entries) -> None:
        self._children: dict[int, list[tuple[Any, Any]]] = {}
        unfinished: set[int] = set()
        pending: list[tuple[Any, bool]] = [(root, False)]
        while pending:
            container, seen = pending.pop()
            if seen:
                unfinished.discard(id(container))
                self._children[id(container)] = [(key, value) for key, value in _items(container) if self._holds(value)]
            elif id(container) in unfinished:
                raise Damaged("a container in its pickle contains itself")
            elif id(container) not in self._children:
                unfinished.add(id(container))
                pending.append((container, True))
                pending += [(value, False) for _, value in _items(container) if type(value) in (Entries, list, tuple)]

    def _holds(self, value: Any) -> bool:
        return type(value) is Stored or bool(self._children.get(id(value)))

    def children(self, container: Any) -> list[tuple[Any, Any]]:
        """(key, value) of each entry of a container that holds tensors."""
        return self._children[id(container)]


def _items(container: Any) -> Iterator[tuple[Any, Any]]:
    """Keys and values. As in a dict, the last of equal names counts, at the position of the first."""
    if type(container) is not Entries:
        return iter(enumerate(container))
    found: dict[Any, Any] = {}
    for number, key in enumerate(container[::2]):
        found[key if type(key) is str else number] = (key, container[2 * number + 1])
    return iter(found.values())


def _unwrapped(root: Entries, below: _Below, notes: list[str]) -> list[tuple[Any, Any]]:
    """The entries of the state dict: the children of ``root``, of the wrapper in it, or of a wrapper that is the only entry of that."""
    pairs, outermost = below.children(root), True
    while True:
        named = {key: value for key, value in pairs if type(key) is str}
        wrapper = next((name for name in _WRAPPERS if type(named.get(name)) is Entries), None)
        model = [(key, value) for key, value in pairs if _text(key) not in _BESIDE and not (wrapper and _is_single(value))]
        if wrapper and (all(key in _WRAPPERS for key, _ in model) if outermost else len(pairs) == 1):
            rest = [_text(key) for key, _ in pairs if key != wrapper]
            notes.append(f"Weights were read from {quoted(wrapper)} of a pickled file{f'; left out: {_listed(rest)}' if rest else ''}.")
            pairs, outermost = below.children(named[wrapper]), False
            continue
        if outermost and model and len(model) < len(pairs):
            rest = [_text(key) for key, _ in pairs if key in _BESIDE]
            notes.append(f"Left out of a pickled file: {_listed(rest)}.")
            return model
        return pairs


def _is_single(value: Any) -> bool:
    """Whether ``value`` is a tensor with one element, such as a step counter."""
    return type(value) is Stored and all(length == 1 for length in value.shape)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(quoted(name) for name in names[:_NAMED]) + more


def _flat(pairs: list[tuple[Any, Any]], below: _Below) -> Iterator[tuple[str, Stored]]:
    """Every tensor below ``pairs``, its keys joined with dots."""
    steps = 0
    pending: list[tuple[str, Iterator[tuple[Any, Any]]]] = [("", iter(pairs))]
    while pending:
        prefix, rest = pending[-1]
        for key, value in rest:
            steps += 1  # containers too: one that is referred to often is passed through often
            if steps > 2 * limits.TENSORS:
                raise Excess(f"names more than {limits.TENSORS:,} tensors (MANTISSA_TENSORS).")
            name = prefix + _text(key)
            if len(name) > limits.TENSOR_NAME_LENGTH:
                raise Excess(f"has a tensor's name of more than {limits.TENSOR_NAME_LENGTH:,} characters (MANTISSA_TENSOR_NAME_LENGTH).")
            if type(value) is Stored:
                yield name, value
                continue
            if len(pending) >= limits.PICKLE_DEPTH:
                raise Excess(f"nests its tensors deeper than {limits.PICKLE_DEPTH:,} levels (MANTISSA_PICKLE_DEPTH).")
            pending.append((name + ".", iter(below.children(value))))
            break
        else:
            pending.pop()


def _text(key: Any) -> str:
    if type(key) is str:
        return key
    if type(key) is int:
        return str(key)
    raise Damaged("a tensor's name is not text")
