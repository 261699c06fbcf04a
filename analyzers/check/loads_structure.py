"""The rule `loads` without transformers: compares tensors with config.json and with the other layers of a stack.

Only names and shapes are compared; nothing else is known of the architecture. Layers of their own kind are normal: the first is often dense
among experts, and the first and last of a vision model have other widths. So a layer is faulted only if it lacks what all others have and
has nothing that they lack, in a stack whose other shapes agree.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analyzers.check.report import Finding
from analyzers.check.rules import finding
from analyzers.checkpoints import Tensor, quoted
from analyzers.formatting import plural

_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_STACKS = (*_COUNTS, "encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers", "depth")
_NEXT_TOKENS = ("num_nextn_predict_layers", "mtp_num_layers", "num_mtp_layers")  # layers stored after the last one
_LEAST = 3  # layers that a stack needs before it tells what one of them should have
_WITH_HEAD = ("ForCausalLM", "LMHeadModel")
_BY_CONFIG, _BY_LAYERS = "Judged by config.json, not by transformers.", "Judged by the other layers, not by transformers."

Shape = tuple[int, ...]


@dataclass
class _Stack:
    """Layers with the same prefix. layers: number -> rest of the name -> shape."""

    prefix: str
    layers: dict[int, dict[str, Shape]] = field(default_factory=dict)

    def name(self, layer: int, rest: str) -> str:
        return f"{self.prefix}{layer}.{rest}"


def compare_with_configuration(config: Mapping[str, Any], tensors: Sequence[Tensor], compared: list[str]) -> Iterator[Finding]:
    """Find contradictions between the tensors and config.json: number of layers, head, size of the vocabulary.

    compared: receives what could be compared.
    """
    settings = _settings(config)
    every = _stacks(tensors)
    stacks = [stack for stack in every if len(stack.layers) > 1]
    layers, stored = _stated_layers(settings), sum(len(stack.layers) for stack in every)
    most = max((settings[name] for name in _STACKS if type(settings.get(name)) is int), default=0)
    shared = any("group" in stack.prefix or "shared" in stack.prefix for stack in every)  # a shared layer may run several times
    if layers > 0 and len(stacks) == 1 and not shared:
        compared.append("the number of layers with config.json")
        yield from _count(stacks[0], layers, any(settings.get(name) for name in _NEXT_TOKENS))
    elif stored > 1 and most > 0 and not shared:  # config.json may count the layers of any stack; no count exceeds all stored
        compared.append("the number of layers with config.json")
        if most > stored:
            yield _too_few(most, stored)
    embeddings = [tensor for tensor in tensors if tensor.role == "embedding" and len(tensor.shape) == 2]
    yield from _head(settings, tensors, bool(embeddings), bool(stacks))
    rows = settings.get("vocab_size")
    words = [t for t in embeddings if any(part in t.name for part in ("embed_tokens", "wte", "word_embeddings", "tok_embeddings"))]
    if words and type(rows) is int:
        compared.append("the size of the vocabulary with config.json")
    for tensor in words:
        if type(rows) is int and 0 < tensor.shape[0] < rows:
            detail = f"{quoted(tensor.name)} has {tensor.shape[0]:,} rows, and config.json states a vocab_size of {rows:,}. {_BY_CONFIG}"
            yield finding("loads", "error", "Tokens without an embedding", detail, [tensor.name])


def compare_layers(config: Mapping[str, Any], tensors: Sequence[Tensor], compared: list[str]) -> Iterator[Finding]:
    """Find layers that lack a tensor which all others have, and tensors whose shape differs from that in all other layers.

    Layers beyond the number that config.json states are neither loaded nor compared. compared: receives what could be compared.
    """
    most = _stated_layers(_settings(config))
    stacks = _stacks([tensor for tensor in tensors if not most or tensor.layer is None or tensor.layer < most])
    stacks = [stack for stack in stacks if len(stack.layers) >= _LEAST]
    if stacks:
        compared.append("layers with each other")
    for stack in stacks:
        yield from _lacking(stack)
        yield from _misshapen(stack)


def _settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json, overridden by the settings of the text model if it is multimodal."""
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def _stated_layers(settings: Mapping[str, Any]) -> int:
    """Return the number of layers that config.json states, 0 if it states none."""
    return next((settings[name] for name in _COUNTS if type(settings.get(name)) is int), 0)


def _count(stack: _Stack, stated: int, predicts: bool) -> Iterator[Finding]:
    present = sum(layer < stated for layer in stack.layers)
    if present < stated:
        yield _too_few(stated, present)
    elif len(stack.layers) > stated and not predicts:
        more = [stack.name(layer, rest) for layer, rests in stack.layers.items() if layer >= stated for rest in rests]
        detail = f"config.json states {stated:,} layers, and the files hold {len(stack.layers):,}: loaders ignore the others. {_BY_CONFIG}"
        yield finding("loads", "warning", "Layers that are ignored", detail, more)


def _too_few(stated: int, present: int) -> Finding:
    detail = f"config.json states {stated:,} layers, and the files hold {present:,} of them: correct it, or save them all. {_BY_CONFIG}"
    return finding("loads", "error", "Layers are missing", detail)


def _head(settings: Mapping[str, Any], tensors: Sequence[Tensor], embedding: bool, layers: bool) -> Iterator[Finding]:
    named = settings.get("architectures")
    predicts = isinstance(named, list) and any(str(name).endswith(_WITH_HEAD) for name in named)
    others = any(len(tensor.shape) == 2 and tensor.layer is None and tensor.role != "head" for tensor in tensors)  # under other names
    if predicts and layers and not embedding and not others:
        detail = f"No embedding is stored, and config.json names a language model: save the whole model. {_BY_CONFIG}"
        yield finding("loads", "error", "The embedding is missing", detail)
    headless = not any(tensor.role == "head" for tensor in tensors)
    if settings.get("tie_word_embeddings") is False and predicts and embedding and headless:
        detail = (
            "config.json says that the head is not tied to the embedding (tie_word_embeddings), and no head is stored: correct it, or save "
            f"the head too. {_BY_CONFIG}"
        )
        yield finding("loads", "error", "The head is missing", detail)


def _lacking(stack: _Stack) -> Iterator[Finding]:
    counts = Counter(rest for rests in stack.layers.values() for rest in rests)
    shapes = _usual_shapes(stack)
    first, last = min(stack.layers), max(stack.layers)
    in_all_others = [rest for rest, count in counts.items() if count == len(stack.layers) - 1]
    lost = []
    for layer, rests in stack.layers.items():
        alike = all(counts[rest] > 1 and shape == shapes[rest] for rest, shape in rests.items())
        lacking = [rest for rest in in_all_others if rest not in rests]
        if layer in (first, last):  # the norm before the first or after the last layer may belong to another module
            lacking = [rest for rest in lacking if len(shapes[rest]) > 1]
        if alike and rests:
            lost += [stack.name(layer, rest) for rest in lacking]
    if lost:
        detail = f"{quoted(lost[0])} is not in the files, and all other layers have it: save the model again. {_BY_LAYERS}"
        if len(lost) > 1:
            detail = (
                f"{plural(len(lost), 'tensor')} that all other layers have are not in the files, {quoted(lost[0])} first: save the model "
                f"again. {_BY_LAYERS}"
            )
        yield finding("loads", "error", "Weights are missing", detail, lost)


def _misshapen(stack: _Stack) -> Iterator[Finding]:
    shapes = _usual_shapes(stack)
    ends = min(stack.layers), max(stack.layers)
    counts = Counter((rest, shape == shapes[rest]) for rests in stack.layers.values() for rest, shape in rests.items())
    odd = {
        stack.name(layer, rest): (shape, shapes[rest])
        for layer, rests in stack.layers.items()
        for rest, shape in rests.items()
        if shape != shapes[rest]
        and 0 not in shape
        and counts[rest, False] == 1
        and counts[rest, True] >= _LEAST - 1
        and (layer not in ends or shape == shapes[rest][::-1])  # the ends of a stack may have widths of their own
    }
    if odd:
        name, (shape, usual) = next(iter(odd.items()))
        detail = (
            f"{plural(len(odd), 'tensor has', 'tensors have')} a different shape from all other layers; {quoted(name)} is {list(shape)} "
            f"instead of {list(usual)}: save the model again. {_BY_LAYERS}"
        )
        yield finding("loads", "error", "Shapes differ between layers", detail, list(odd))


def _usual_shapes(stack: _Stack) -> dict[str, Shape]:
    """Return the most frequent shape of each tensor among the layers."""
    shapes: dict[str, Counter[Shape]] = {}
    for rests in stack.layers.values():
        for rest, shape in rests.items():
            shapes.setdefault(rest, Counter())[shape] += 1
    return {rest: counted.most_common(1)[0][0] for rest, counted in shapes.items()}


def _stacks(tensors: Sequence[Tensor]) -> list[_Stack]:
    """Group the layers by the prefix of their names."""
    stacks: dict[str, _Stack] = {}
    for tensor in tensors:
        if tensor.layer is None or tensor.buffer:
            continue
        before, _, rest = tensor.name.partition(f".{tensor.layer}.")
        stack = stacks.setdefault(before, _Stack(before + "."))
        stack.layers.setdefault(tensor.layer, {})[rest] = tensor.shape
    return list(stacks.values())
