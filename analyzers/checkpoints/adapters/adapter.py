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
    (out, r), for an embedding (r, rows) and (width, r), for a convolution (r, in, height, width) and (out, r, 1, 1); scale: s;
    magnitude: of DoRA, (out,).
    """

    name: str
    a: Tensor
    b: Tensor
    scale: float
    embedding: bool = False
    magnitude: Tensor | None = None

    @property
    def rank(self) -> int:
        """The rank r."""
        return self.a.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weights that it changes, as the adapter sees them."""
        return (self.a.shape[1], self.b.shape[0]) if self.embedding else (self.b.shape[0], *self.a.shape[1:])


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A module, or a whole tensor, of an adapter that is not merged into the base. why: a clause."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Adapter:
    """An open adapter. Close its ``checkpoint``.

    saved: the whole tensors that replace those of the base, by their names there.
    """

    checkpoint: Checkpoint
    configuration: AdapterConfiguration
    modules: tuple[AdaptedModule, ...]
    saved: dict[str, Tensor]

    @property
    def ref(self) -> str:
        """The canonical reference of the adapter."""
        return self.checkpoint.ref


def read_adapter(checkpoint: Checkpoint) -> Adapter:
    """Read what ``checkpoint``, an adapter as it is stored, changes.

    Raises UnsupportedWeights, naming the method or the spelling and what merges it, for anything but LoRA, rsLoRA and DoRA in the names of
    peft; InvalidCheckpoint, also if no configuration states the scale, or a module contradicts it.
    """
    paths = [file.path for file in checkpoint.files]
    own = read_configuration(checkpoint.repository, paths[0].rpartition("/")[0])
    matrices, saved = _sorted(checkpoint.tensors)
    if not matrices and not is_adapter(paths, checkpoint.tensors):
        raise UnsupportedWeights("It holds whole weights and no adapter.")
    if own is None:
        raise InvalidCheckpoint(f"It has no {FILE}, which states the scale (lora_alpha).")
    ranks, alphas = by_pattern(own.ranks, matrices), by_pattern(own.alphas, matrices)
    modules = []
    for name, parts in matrices.items():
        a, b = parts.get("embedding_A", parts.get("A")), parts.get("embedding_B", parts.get("B"))
        embedding = "embedding_A" in parts
        if a is None or b is None or not _have_product(a, b) or (embedding and len(a.shape) > 2):
            shapes = " and ".join("none" if each is None else f"{each.dtype} {each.shape}" for each in (a, b))
            raise InvalidCheckpoint(f"The matrices A and B of {quoted(name, 200)} have no product: {shapes}.")
        scale = own.scale(a.shape[0], alphas.get(name, own.alpha))
        module = AdaptedModule(f"{name}.weight", a, b, scale, embedding, parts.get("magnitude_vector"))
        _check(module, own, ranks.get(name, own.rank))
        modules.append(module)
    return Adapter(checkpoint, own, tuple(modules), saved)


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


def _have_product(a: Tensor, b: Tensor) -> bool:
    floats = a.has_values and b.has_values and a.elements > 0 and b.elements > 0
    return floats and min(len(a.shape), len(b.shape)) > 1 and a.shape[0] == b.shape[1] and prod(b.shape[2:]) == 1


def _check(module: AdaptedModule, own: AdapterConfiguration, rank: int | None) -> None:
    """Raise InvalidCheckpoint for a module that contradicts the configuration. rank: the one that this states."""
    plain, magnitude = len(module.a.shape) == 2 and not module.embedding, module.magnitude
    if own.dora and (not plain or own.fan_in_fan_out):
        raise UnsupportedWeights(
            "This adapter uses DoRA of an embedding, a convolution or transposed weights: it is merged by merge_and_unload of peft."
        )
    why = ""
    if max(module.a.elements, module.b.elements) * 4 > _MOST_BYTES:
        why = "are too large to be held in memory"
    elif rank and module.rank != rank:
        why = f"have rank {module.rank:,}, and {FILE} states {rank:,}"
    elif own.dora != (magnitude is not None):
        why = f"have {'magnitudes' if magnitude else 'no magnitudes'}, and {FILE} states {'DoRA' if own.dora else 'no DoRA'}"
    elif magnitude is not None and (magnitude.elements != module.b.shape[0] or not magnitude.has_values):
        why = f"have magnitudes {magnitude.dtype} {magnitude.shape} for {module.b.shape[0]:,} rows"
    if why:
        raise InvalidCheckpoint(f"The matrices of {quoted(module.name, 200)} {why}.")
