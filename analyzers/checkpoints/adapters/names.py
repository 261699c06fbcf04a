"""Sorts the tensors of an adapter by their names: matrices, magnitudes, scales, and whole tensors that replace the base's.

Names are those of peft, of unmerged checkpoints (with the adapter's name, ``lora_A.default.weight``), of diffusers and of kohya's scripts.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.tensor import Tensor
from analyzers.core.errors import InvalidCheckpoint, UnsupportedWeights

_PEFT = re.compile(r"(.+)\.lora_(A|B|embedding_A|embedding_B|magnitude_vector)(?:\.(?!weight$|bias$)([^.]+))?(?:\.(weight|bias))?")
# diffusers before peft: attn1.to_q.lora.down.weight, attn1.processor.to_q_lora.down.weight, proj.lora_linear_layer.up.weight
_DIFFUSERS = re.compile(r"(.+?)(?:\.lora|\.lora_linear_layer|\.lora_conv_layer|_lora)\.(down|up)\.weight")
_KOHYA = re.compile(r"(.+)\.(?:lora_(down|up)\.weight|(alpha)|(dora_scale))")
_FLAT = re.compile(r"lora_(unet|te\d?|transformer|prior)_(.+)")
# Parts of an image model -> the folders that diffusers stores them in.
_FOLDERS = {
    "unet": ("unet", "transformer"), "te": ("text_encoder",), "te1": ("text_encoder",), "te2": ("text_encoder_2",),
    "te3": ("text_encoder_3",), "transformer": ("transformer",), "prior": ("prior",),
}  # fmt: skip
_DIFFUSERS_FILE = "pytorch_lora_weights."
_SIDES = {"A": "a", "B": "b", "down": "a", "up": "b", "embedding_A": "a", "embedding_B": "b"}
_SAVED = re.compile(r"\.modules_to_save(\.[^.]+)?(?=\.)")
_PREFIXES = ("base_model.model.", "diffusion_model.")
_LAST = (".alpha", ".dora_scale")  # parameters only of modules that have matrices
# Parameters of other methods, by parts of their names.
_OTHERS = {
    "hada_": "LoHa", "lokr_": "LoKr", "ia3_l": "IA3", "vera_lambda": "VeRA", "oft_": "OFT", "prompt_embeddings": "prompt tuning",
    "lora_E": "AdaLoRA", "trainable_tokens_": "trainable tokens", "lora_mid": "LoCon of three matrices",
    ".weight.lora_": "the names of GGUF",
}  # fmt: skip


@dataclass(slots=True)
class Module:
    """The tensors of one module of an adapter.

    name: the module's, as in the model that the adapter was trained with; a (r, in), b (out, r): the matrices; embedding: whether they are
    those of an embedding, for which a is (r, rows) and b (width, r); magnitude: of DoRA; bias: added to the module's bias with the scale;
    alpha: a scalar, in files that have no configuration; flat: whether the dots of the name are underscores; outer: the number of
    wrappers of other parameters around this one.
    """

    name: str
    a: Tensor | None = None
    b: Tensor | None = None
    embedding: bool = False
    magnitude: Tensor | None = None
    bias: Tensor | None = None
    alpha: Tensor | None = None
    flat: bool = False
    outer: int = 0


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of an adapter.

    modules: by path; saved: name in the base -> the tensor that replaces it; unscaled: whether only a configuration states the scale.
    """

    modules: dict[str, Module]
    saved: dict[str, Tensor]
    unscaled: bool


def sort_tensors(tensors: Iterable[Tensor], paths: Iterable[str] = ()) -> Contents:
    """Sort the tensors of an adapter in the files ``paths``.

    diffusers stores peft's matrices without a configuration: their alpha is that of the file, else the rank. Raises UnsupportedWeights,
    naming the method, for parameters of another method than LoRA or DoRA.
    """
    diffusers = any(path.rpartition("/")[2].startswith(_DIFFUSERS_FILE) for path in paths)
    modules: dict[str, Module] = {}
    saved: dict[str, Tensor] = {}
    adapters: set[str] = set()
    unscaled = False
    for tensor in sorted(tensors, key=lambda each: each.name.endswith(_LAST)):
        name = tensor.name
        if match := _PEFT.fullmatch(name):
            unscaled |= not diffusers and not name.startswith(("unet.", "text_encoder"))
            path, kind, adapter, leaf = match.groups()
            adapters.add(adapter or "")
            if len(adapters) > 1:
                raise UnsupportedWeights(f"The file holds several adapters, {quoted(adapter or '')} for one: store each alone.")
            outer = path.count(".base_layer")
            module = modules.setdefault(path, Module(plain_name(path), outer=outer))
            _put(module, _SIDES.get(kind, "magnitude") if leaf != "bias" else "bias", tensor)
            module.embedding |= kind.startswith("embedding")
        elif match := _DIFFUSERS.fullmatch(name):
            path = match[1].replace(".processor.", ".")
            _put(modules.setdefault(path, Module(plain_name(path))), _SIDES[match[2]], tensor)
        elif (match := _KOHYA.fullmatch(name)) and (match[2] or match[1] in modules or _FLAT.fullmatch(match[1])):
            flat = _FLAT.fullmatch(match[1])
            module = modules.setdefault(match[1], Module(match[1] if flat else plain_name(match[1]), flat=flat is not None))
            _put(module, "alpha" if match[3] else "magnitude" if match[4] else _SIDES[match[2]], tensor)
        else:
            other = next((words for part, words in _OTHERS.items() if part in name), None)
            if other:
                raise UnsupportedWeights(f"This adapter uses {other} ({quoted(name)}), which is not supported: LoRA, rsLoRA and DoRA are.")
            if ".original_module." not in name:
                saved[plain_name(name)] = tensor
    firsts: dict[tuple[str, int], str] = {}
    for path, module in modules.items():
        if (first := firsts.setdefault((module.name, module.outer), path)) != path:
            raise InvalidCheckpoint(f"The adapter holds {quoted(module.name, 200)} twice, as {quoted(first, 200)} and {quoted(path, 200)}.")
    return Contents(modules, saved, unscaled)


def spelled(name: str) -> list[str]:
    """Return the names that kohya's scripts and diffusers give to the weights ``name``, which may begin with their folder."""
    folder, _, module = name.rpartition("/")
    folders = [folder.rpartition("/")[2]] if folder else sorted({each for several in _FOLDERS.values() for each in several})
    parts = [part for part, several in _FOLDERS.items() if not {*folders}.isdisjoint(several)]
    flat = module.removesuffix(".weight").replace(".", "_")
    return [*(f"lora_{part}_{flat}" for part in parts), *(f"{each}.{module}" for each in folders)]


def _put(module: Module, side: str, tensor: Tensor) -> None:
    if getattr(module, side) is not None:
        raise InvalidCheckpoint(f"The adapter holds {quoted(tensor.name)} twice, under two names.")
    setattr(module, side, tensor)


def plain_name(name: str) -> str:
    """Return the name of a tensor, or a module, without the prefixes and the wrappers of peft."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return _SAVED.sub("", name).replace(".original_module.", ".").replace(".base_layer", "")
