"""Reads an adapter: its configuration, and the shapes, ranks and scales of its modules. Matrices are read later, where they are needed."""

from dataclasses import dataclass

import numpy as np

from analyzers.checkpoints.adapters.configuration import FILE, AdapterConfiguration, by_pattern, from_metadata, read_configuration
from analyzers.checkpoints.adapters.names import Module, sort_tensors
from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.formats.safetensors_header import read_header
from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.repository import read_range
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.adapters import is_adapter
from analyzers.core.errors import InvalidCheckpoint, UnsupportedWeights
from analyzers.core.formatting import listed
from analyzers.numerics.conversions import values_of

_USUAL_ALPHA = 8.0  # peft's default
_MOST_BYTES = 256 << 20  # of one matrix: it is held in memory, in fp32


@dataclass(frozen=True, slots=True)
class AdaptedModule:
    """One module with its change s B A, of shape (out, in); (rows, width) for an embedding, as its weights are stored.

    name: of the parameter that it changes, as in the model that the adapter was trained with; a, b: the stored matrices, (r, in) and
    (out, r), for an embedding (r, rows) and (width, r); with ``experts`` > 1, of a stack of experts: (experts x r, in), (out, r x experts);
    rank: r; stated_rank: that of the configuration, None if it has none; scale: s; magnitude: of DoRA, (out,), for an embedding (width,);
    bias: added to the module's bias, times s; flat: whether the dots of ``name`` are underscores.
    """

    name: str
    a: Tensor
    b: Tensor
    rank: int
    stated_rank: int | None
    scale: float
    embedding: bool = False
    experts: int = 1
    magnitude: Tensor | None = None
    bias: Tensor | None = None
    flat: bool = False

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

    configured: whether a configuration states the scales; modules: those that can be applied; saved: name of a tensor of the base -> the
    tensor that replaces it; unusable: modules that cannot be applied to any base, with the reason.
    """

    checkpoint: Checkpoint
    configuration: AdapterConfiguration
    configured: bool
    modules: tuple[AdaptedModule, ...]
    saved: dict[str, Tensor]
    unusable: tuple[Unmatched, ...]

    @property
    def ref(self) -> str:
        """The canonical reference of the adapter."""
        return self.checkpoint.ref


def read_adapter(checkpoint: Checkpoint) -> Adapter:
    """Read what ``checkpoint``, an adapter as it is stored, changes.

    Raises UnsupportedWeights, naming the method, if that is not LoRA, rsLoRA or DoRA, or if nothing states the scale; InvalidCheckpoint.
    """
    folders = sorted({file.path.rpartition("/")[0] for file in checkpoint.files})
    if len(folders) > 1 and all(f"{each}/{FILE}".lstrip("/") in checkpoint.repository.files for each in folders):
        raise UnsupportedWeights(
            f"It holds {len(folders):,} adapters, in the folders {listed([quoted(each) for each in folders[:3]])}: name one of them."
        )
    folder = folders[0]
    configuration = read_configuration(checkpoint.repository, folder) or _in_metadata(checkpoint)
    contents = sort_tensors(checkpoint.tensors, [file.path for file in checkpoint.files])
    if not contents.modules and not is_adapter([file.path for file in checkpoint.files], checkpoint.tensors):
        raise UnsupportedWeights("It holds whole weights and no adapter.")
    if configuration is None and contents.unscaled:
        raise InvalidCheckpoint(f"It has no {FILE}, which states the scale (lora_alpha).")
    own = configuration or AdapterConfiguration()
    parameters = {path: _parameter(module, own) for path, module in contents.modules.items()}
    keys = {path: parameters[path] or module.name for path, module in contents.modules.items()}
    ranks, alphas = by_pattern(own.ranks, keys.values()), by_pattern(own.alphas, keys.values())
    modules, unusable = [], []
    for path, module in contents.modules.items():
        stated, alpha = ranks.get(keys[path], own.rank), alphas.get(keys[path], own.alpha)
        why = _misfit(module, own, stated, parameters[path] is not None)
        if why:
            unusable.append(Unmatched(module.name, why))
            continue
        if configuration is None and module.alpha is not None:
            alpha = _scalar(checkpoint, module.alpha)
        elif configuration is not None and alpha is None:
            alpha = _USUAL_ALPHA
        modules.append(_adapted(module, own, parameters[path], stated, alpha))
    return Adapter(checkpoint, own, configuration is not None, tuple(modules), contents.saved, tuple(unusable))


def _adapted(module: Module, own: AdapterConfiguration, parameter: str | None, stated: int | None, alpha: float | None) -> AdaptedModule:
    """Describe a module that can be applied. alpha: None if nothing states it: the scale is then 1."""
    assert module.a is not None
    assert module.b is not None
    experts = module.a.shape[0] // stated if parameter and stated else 1
    rank = module.a.shape[0] // experts
    return AdaptedModule(
        name=parameter or (module.name if module.flat else f"{module.name}.weight"),
        a=module.a,
        b=module.b,
        rank=rank,
        stated_rank=stated,
        scale=own.scale(rank, float(alpha)) if alpha is not None else 1.0,
        embedding=module.embedding,
        experts=experts,
        magnitude=module.magnitude,
        bias=module.bias,
        flat=module.flat,
    )


def _misfit(module: Module, own: AdapterConfiguration, stated: int | None, stacked: bool) -> str:
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
    if module.magnitude is not None and (len(a.shape) > 2 or not own.dora):
        return "DoRA of a convolution, or in kohya's layout, is not merged here"
    if stated and (a.shape[0] % stated if stacked else a.shape[0] != stated):
        return f"its matrices have rank {a.shape[0]:,}, and {FILE} states {stated:,}"
    if own.dora and module.magnitude is None:
        return "its magnitudes are missing, and the configuration states DoRA"
    return ""


def _parameter(module: Module, own: AdapterConfiguration) -> str | None:
    """Return the full name of the stacked parameter that ``target_parameters`` names for a module, None for an ordinary module.

    If a module has several, wrappers are nested: the parameter that the model defines first is the innermost.
    """
    names = {key.rpartition(".")[2] for key in own.parameters if f".{module.name}".endswith("." + key.rpartition(".")[0]) and "." in key}
    ordered = sorted(names, key=lambda name: ("down" in name or "output" in name, name), reverse=True)
    return f"{module.name}.{ordered[module.outer]}" if module.outer < len(ordered) else None


def _in_metadata(checkpoint: Checkpoint) -> AdapterConfiguration | None:
    """Return the settings that diffusers stores in the weight file, None if there are none."""
    file = checkpoint.files[0]
    text = read_header(file).metadata.get("lora_adapter_metadata") if file.path.endswith(".safetensors") else None
    return None if text is None else from_metadata(text)


def _scalar(checkpoint: Checkpoint, tensor: Tensor) -> float | None:
    """Return the value of a scalar; None if it has other values."""
    if tensor.elements != 1 or not tensor.has_values or tensor.scale is not None:
        return None
    raw = bytearray(read_range(checkpoint.files[tensor.file], tensor.offset, tensor.itemsize))
    value = float(values_of(np.frombuffer(raw, f"<u{tensor.itemsize}"), tensor.dtype)[0])
    return value if abs(value) < 1e30 else None
