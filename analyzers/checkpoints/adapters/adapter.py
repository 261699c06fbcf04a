"""Reads an adapter as peft saves it: its configuration, and the shapes, ranks and scales of its modules. Matrices are read later."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from analyzers.checkpoints.adapters.configuration import FILE, AdapterConfiguration, by_pattern, read_configuration
from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.adapters import is_adapter
from analyzers.core.errors import InvalidCheckpoint, UnsupportedWeights

_USUAL_ALPHA = 8.0  # peft's default
_MOST_BYTES = 256 << 20  # of one matrix: it is held in memory, in fp32
_PEFT = re.compile(
    r"(.+)\.lora_(?:(A|B)(?:\.([^.]+))?\.weight|(embedding_A|embedding_B|magnitude_vector)(?:\.(?!weight$)([^.]+))?(?:\.weight)?)"
)
_SAVED = re.compile(r"\.modules_to_save(\.[^.]+)?(?=\.)")
_PREFIX = "base_model.model."
_OF_PEFT = "merge_and_unload of peft"
_OF_DIFFUSERS = "load_lora_weights and fuse_lora of diffusers"
# Parameters of other methods and spellings, by parts of their names: what they are, and what merges them.
_OTHERS = {
    "lora_down": ("the names of kohya's scripts", _OF_DIFFUSERS), "lora_up": ("the names of kohya's scripts", _OF_DIFFUSERS),
    ".lora.": ("the names of diffusers", _OF_DIFFUSERS), "_lora.": ("the names of diffusers", _OF_DIFFUSERS),
    "lora_linear_layer.": ("the names of diffusers", _OF_DIFFUSERS), "lora_bias": ("biases of B (lora_bias)", _OF_PEFT),
    ".lora_B.bias": ("biases of B (lora_bias)", _OF_PEFT), "lora_mid": ("LoCon of three matrices", _OF_DIFFUSERS),
    "hada_": ("LoHa", _OF_PEFT), "lokr_": ("LoKr", _OF_PEFT), "ia3_l": ("IA3", _OF_PEFT), "vera_lambda": ("VeRA", _OF_PEFT),
    "oft_": ("OFT", _OF_PEFT), "prompt_embeddings": ("prompt tuning", "nothing, since it changes no weights"),
    "lora_E": ("AdaLoRA", _OF_PEFT), "trainable_tokens_": ("trainable tokens", _OF_PEFT),
    ".weight.lora_": ("the names of GGUF", "llama-export-lora of llama.cpp"), "lora_": ("the names of loralib", "eval() of its model"),
}  # fmt: skip


@dataclass(slots=True)
class _Matrices:
    """The tensors of one module. outer: the number of wrappers of other parameters around this one."""

    name: str
    outer: int
    a: Tensor | None = None
    b: Tensor | None = None
    embedding: bool = False
    magnitude: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AdaptedModule:
    """One module with its change s B A, of shape (out, in); (rows, width) for an embedding, as its weights are stored.

    name: of the parameter that it changes, as in the model that the adapter was trained with; a, b: the stored matrices, (r, in) and
    (out, r), for an embedding (r, rows) and (width, r); with ``experts`` > 1, of a stack of experts: (experts x r, in), (out, r x experts);
    rank: r; scale: s; magnitude: of DoRA, (out,).
    """

    name: str
    a: Tensor
    b: Tensor
    rank: int
    scale: float
    embedding: bool = False
    experts: int = 1
    magnitude: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weights that it changes, as the adapter sees them: (out, in), after the experts if there are several."""
        if self.embedding:
            return self.a.shape[1], self.b.shape[0]
        return (*((self.experts,) if self.experts > 1 else ()), self.b.shape[0], *self.a.shape[1:])


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A module, or a whole tensor, of an adapter that is not merged into the base.

    why: a clause; works: whether it takes effect all the same while the adapter is unmerged, in a model that has such a module.
    """

    name: str
    why: str
    works: bool = False


@dataclass(frozen=True, slots=True)
class Adapter:
    """An open adapter. Close its ``checkpoint``.

    modules: those that can be applied; saved: name of a tensor of the base -> the tensor that replaces it; unusable: modules that cannot
    be applied to any base, with the reason.
    """

    checkpoint: Checkpoint
    configuration: AdapterConfiguration
    modules: tuple[AdaptedModule, ...]
    saved: dict[str, Tensor]
    unusable: tuple[Unmatched, ...]

    @property
    def ref(self) -> str:
        """The canonical reference of the adapter."""
        return self.checkpoint.ref


def read_adapter(checkpoint: Checkpoint) -> Adapter:
    """Read what ``checkpoint``, an adapter as it is stored, changes.

    Raises UnsupportedWeights, naming the method or the spelling and what merges it, for anything but LoRA, rsLoRA and DoRA in the names of
    peft; InvalidCheckpoint, also if no configuration states the scale.
    """
    paths = [file.path for file in checkpoint.files]
    own = read_configuration(checkpoint.repository, paths[0].rpartition("/")[0])
    matrices, saved = _sorted(checkpoint.tensors)
    if not matrices and not is_adapter(paths, checkpoint.tensors):
        raise UnsupportedWeights("It holds whole weights and no adapter.")
    if own is None:
        raise InvalidCheckpoint(f"It has no {FILE}, which states the scale (lora_alpha).")
    parameters = {path: _parameter(module, own) for path, module in matrices.items()}
    keys = {path: parameters[path] or module.name for path, module in matrices.items()}
    ranks, alphas = by_pattern(own.ranks, keys.values()), by_pattern(own.alphas, keys.values())
    modules, unusable = [], []
    for path, module in matrices.items():
        stated = ranks.get(keys[path], own.rank)
        why = _misfit(module, own, stated, parameters[path] is not None)
        if why or module.a is None or module.b is None:
            unusable.append(Unmatched(module.name, why))
            continue
        experts = module.a.shape[0] // stated if parameters[path] and stated else 1
        rank, alpha = module.a.shape[0] // experts, alphas.get(keys[path], own.alpha)
        scale = own.scale(rank, _USUAL_ALPHA if alpha is None else float(alpha))
        name = parameters[path] or f"{module.name}.weight"
        modules.append(AdaptedModule(name, module.a, module.b, rank, scale, module.embedding, experts, module.magnitude))
    return Adapter(checkpoint, own, tuple(modules), saved, tuple(unusable))


def plain_name(name: str) -> str:
    """Return the name of a tensor, or a module, without the prefix and the wrappers of peft."""
    return _SAVED.sub("", name.removeprefix(_PREFIX)).replace(".original_module.", ".").replace(".base_layer", "")


def _sorted(tensors: Iterable[Tensor]) -> tuple[dict[str, _Matrices], dict[str, Tensor]]:
    """Return the matrices of each module, by path, and the whole tensors that replace those of the base, by their names there."""
    modules: dict[str, _Matrices] = {}
    saved: dict[str, Tensor] = {}
    labels: set[str] = set()
    for tensor in tensors:
        match = _PEFT.fullmatch(tensor.name)
        if match is None:
            other = next((words for part, words in _OTHERS.items() if part in tensor.name), None)
            if other is not None:
                what, how = other
                raise UnsupportedWeights(
                    f"This adapter uses {what} ({quoted(tensor.name)}), and LoRA, rsLoRA and DoRA are read as peft saves them: "
                    f"it is merged by {how}."
                )
            if ".original_module." not in tensor.name:
                saved[plain_name(tensor.name)] = tensor
            continue
        path, side, label, kind, other_label = match.groups()
        labels.add(label or other_label or "")
        if len(labels) > 1:
            raise UnsupportedWeights(f"The file holds several adapters, {quoted(max(labels))} for one: store each alone.")
        module = modules.setdefault(path, _Matrices(plain_name(path), path.count(".base_layer")))
        place = {"A": "a", "B": "b", "embedding_A": "a", "embedding_B": "b"}.get(side or kind, "magnitude")
        if getattr(module, place) is not None:
            raise InvalidCheckpoint(f"The adapter holds {quoted(tensor.name)} twice, under two names.")
        setattr(module, place, tensor)
        module.embedding |= side is None and place != "magnitude"
    firsts: dict[tuple[str, int], str] = {}
    for path, module in modules.items():
        if (first := firsts.setdefault((module.name, module.outer), path)) != path:
            raise InvalidCheckpoint(f"The adapter holds {quoted(module.name, 200)} twice, as {quoted(first, 200)} and {quoted(path, 200)}.")
    return modules, saved


def _misfit(module: _Matrices, own: AdapterConfiguration, stated: int | None, stacked: bool) -> str:
    """Return why a module can be applied to no base, "" if it can."""
    a, b = module.a, module.b
    if a is None or b is None:
        return f"its matrix {'A' if a is None else 'B'} is missing"
    if not (a.has_values and b.has_values):
        return f"its matrices hold no floats ({a.dtype}, {b.dtype})"
    if len(a.shape) < 2 or len(b.shape) < 2 or not a.elements or not b.elements:
        return f"its matrices have shapes {a.shape} and {b.shape}, and matrices have two axes of at least 1"
    if a.shape[0] != b.shape[1]:
        return f"its matrices have shapes {a.shape} and {b.shape}, which differ in their rank"
    if max(a.elements, b.elements) * 4 > _MOST_BYTES:
        return f"a matrix of shape {max(a.shape, b.shape)} is too large to be held in memory"
    if any(length != 1 for length in b.shape[2:]) or (module.embedding and len(a.shape) > 2):
        return f"its matrices have shapes {a.shape} and {b.shape}, which no merge is defined for"
    if own.dora and (len(a.shape) > 2 or module.embedding or own.fan_in_fan_out):
        raise UnsupportedWeights(
            f"This adapter uses DoRA of an embedding, a convolution or transposed weights: it is merged by {_OF_PEFT}."
        )
    if stated and (a.shape[0] % stated if stacked else a.shape[0] != stated):
        return f"its matrices have rank {a.shape[0]:,}, and {FILE} states {stated:,}"
    if own.dora != (module.magnitude is not None):
        return (
            "its magnitudes are missing, and the configuration states DoRA" if own.dora else f"it has magnitudes, and {FILE} states no DoRA"
        )
    return ""


def _parameter(module: _Matrices, own: AdapterConfiguration) -> str | None:
    """Return the full name of the stacked parameter that ``target_parameters`` names for a module, None for an ordinary module.

    If a module has several, wrappers are nested: the parameter that the model defines first is the innermost.
    """
    names = {key.rpartition(".")[2] for key in own.parameters if f".{module.name}".endswith("." + key.rpartition(".")[0]) and "." in key}
    ordered = sorted(names, key=lambda name: ("down" in name or "output" in name, name), reverse=True)
    return f"{module.name}.{ordered[module.outer]}" if module.outer < len(ordered) else None
