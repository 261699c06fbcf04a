"""Reads an adapter as peft saves it: its configuration, and the shapes, ranks and scales of its modules. Matrices are read later."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from analyzers.checkpoints.adapters.configuration import FILE, AdapterConfiguration, by_pattern, read_configuration
from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.adapters import PEFT, is_adapter, other_spelling
from analyzers.checkpoints.tensor_names.roles import is_buffer, layer, role
from analyzers.core.errors import InvalidCheckpoint, UnsupportedWeights

_MOST_BYTES = 256 << 20  # of one matrix: it is held in memory, in fp32
_WRAPPERS = re.compile(r"^base_model\.model\.|\.modules_to_save(\.[^.]+)?(?=\.)|\.base_layer(?=\.|$)")


@dataclass(frozen=True, slots=True)
class AdaptedModule:
    """One module with its change s B A, of shape (out, in); (rows, width) for an embedding, as its weights are stored.

    name: of the weights that it changes, as in the model that the adapter was trained with; a, b: the stored matrices, (r, in) and
    (out, r), for an embedding (r, rows) and (width, r), for a convolution (r, in, height, width) and (out, r, 1, 1); rank: r; scale: s;
    magnitude: of DoRA, (out,).
    """

    name: str
    a: Tensor
    b: Tensor
    rank: int
    scale: float
    embedding: bool = False
    magnitude: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weights that it changes, as the adapter sees them."""
        return (self.a.shape[1], self.b.shape[0]) if self.embedding else (self.b.shape[0], *self.a.shape[1:])


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

    modules: those that can be applied; saved: the whole tensors that replace those of the base, by their names there; unusable: modules
    that cannot be applied to any base, with the reason.
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
    ranks, alphas = by_pattern(own.ranks, matrices), by_pattern(own.alphas, matrices)
    modules, unusable = [], []
    for name, parts in matrices.items():
        embedding = "embedding_A" in parts
        a, b = parts.get("embedding_A", parts.get("A")), parts.get("embedding_B", parts.get("B"))
        if a is None or b is None:
            unusable.append(Unmatched(name, f"its matrix {'A' if a is None else 'B'} is missing"))
        elif why := _misfit(a, b, parts.get("magnitude_vector"), embedding, own, ranks.get(name, own.rank)):
            unusable.append(Unmatched(name, why))
        else:
            scale = own.scale(a.shape[0], alphas.get(name, own.alpha))
            modules.append(AdaptedModule(f"{name}.weight", a, b, a.shape[0], scale, embedding, parts.get("magnitude_vector")))
    return Adapter(checkpoint, own, tuple(modules), saved, tuple(unusable))


def _sorted(tensors: Iterable[Tensor]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor]]:
    """Return module -> part of it -> tensor, and the whole tensors, both under names without the prefix and the wrappers of peft."""
    modules: dict[str, dict[str, Tensor]] = {}
    saved: dict[str, Tensor] = {}
    labels: set[str] = set()
    for tensor in tensors:
        match, other = PEFT.fullmatch(tensor.name), other_spelling(tensor.name)
        if other is not None:
            what, how = other
            raise UnsupportedWeights(
                f"This adapter uses {what} ({quoted(tensor.name)}), and LoRA, rsLoRA and DoRA are read as peft saves them: "
                f"it is merged by {how}."
            )
        if match is not None:
            labels.add(match["label"] or match["other_label"] or "")
            parts, part = modules.setdefault(_WRAPPERS.sub("", match["path"]), {}), match["matrix"] or match["other"]
            if part in parts:
                raise InvalidCheckpoint(f"The adapter holds {quoted(tensor.name, 200)} twice, under two names.")
            parts[part] = tensor
        elif ".original_module." not in tensor.name:  # the base's copy of a module that was saved whole
            name = _WRAPPERS.sub("", tensor.name)
            saved[name] = replace(tensor, name=name, role=role(name), layer=layer(name), buffer=is_buffer(name, tensor.shape, tensor.dtype))
    if len(labels) > 1:
        raise UnsupportedWeights(f"The file holds several adapters, {quoted(max(labels))} for one: store each alone.")
    return modules, saved


def _misfit(a: Tensor, b: Tensor, magnitude: Tensor | None, embedding: bool, own: AdapterConfiguration, rank: int | None) -> str:
    """Return why a module can be applied to no base, "" if it can. rank: the one that the configuration states."""
    whole = a.has_values and b.has_values and min(len(a.shape), len(b.shape)) > 1 and a.elements and b.elements
    if not whole or a.shape[0] != b.shape[1] or prod(b.shape[2:]) != 1 or (embedding and len(a.shape) > 2):
        return f"its matrices, {a.dtype} {a.shape} and {b.dtype} {b.shape}, have no product"
    if max(a.elements, b.elements) * 4 > _MOST_BYTES:
        return f"its matrices, of {a.shape} and {b.shape}, are too large to be held in memory"
    if rank and a.shape[0] != rank:
        return f"its matrices have rank {a.shape[0]:,}, and {FILE} states {rank:,}"
    if own.dora and (len(a.shape) > 2 or embedding or own.fan_in_fan_out):
        raise UnsupportedWeights(
            "This adapter uses DoRA of an embedding, a convolution or transposed weights: it is merged by merge_and_unload of peft."
        )
    if own.dora != (magnitude is not None):
        return f"it has {'magnitudes' if magnitude else 'no magnitudes'}, and {FILE} states {'DoRA' if own.dora else 'no DoRA'}"
    if magnitude is not None and (magnitude.elements != b.shape[0] or not magnitude.has_values):
        return f"its magnitudes have shape {magnitude.shape}, and there are {b.shape[0]:,} rows"
    return ""
