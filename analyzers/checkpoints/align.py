"""Matches the tensors of a base checkpoint with those of each tuned checkpoint.

Tensors match by name, then by bare name, without the prefixes and wrappers that programs add (`renames`). Embeddings and heads
with different numbers of rows are compared on their common rows. Anything not, or not simply, compared is listed (`Unmatched`).
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from analyzers.checkpoints.checkpoint import Checkpoint
from analyzers.checkpoints.elements import normal_strides
from analyzers.checkpoints.filters import passing, select
from analyzers.checkpoints.renames import renamed
from analyzers.checkpoints.spans import Sides
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.ties import tied_heads


@dataclass(frozen=True, slots=True)
class Group:
    """One parameter of the base and of every tuned checkpoint, None for a checkpoint that has no comparable tensor.

    base: cut to the rows (first axis) that at least one tuned checkpoint has; tuned: cut to the rows of the base; with fewer rows
    than ``base`` they cover its first elements. All in row-major order of their shapes.
    """

    base: Tensor
    tuned: tuple[Tensor | None, ...]

    @property
    def sides(self) -> Sides:
        """Base and tuned."""
        return (self.base, *self.tuned)


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of the base and its counterpart, both as stored."""

    base: Tensor
    tuned: Tensor


@dataclass(frozen=True, slots=True)
class Misshapen(Pair):
    """A pair with different shapes. transposed: the shapes differ only in the order of the axes."""

    transposed: bool


@dataclass(frozen=True, slots=True)
class Resized(Pair):
    """An embedding or a head with a different number of rows: the first ``rows`` were compared."""

    rows: int


@dataclass(slots=True)
class Unmatched:
    """What is not, or not simply, compared between the base and one tuned checkpoint; in the base's order, then the tuned one's.

    missing: only in the base; extra: only in the tuned checkpoint; misshapen: shapes do not match; renamed, resized: compared
    nevertheless; integers: parameters of both in which at least one side has no float values; that side's tensor, or the base's if
    neither has any; tied: heads that repeat the input embedding on every side that stores them.
    """

    missing: list[Tensor] = field(default_factory=list)
    extra: list[Tensor] = field(default_factory=list)
    misshapen: list[Misshapen] = field(default_factory=list)
    renamed: list[Pair] = field(default_factory=list)
    resized: list[Resized] = field(default_factory=list)
    integers: list[Tensor] = field(default_factory=list)
    tied: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Alignment:
    """groups: the compared parameters, in the base's order; unmatched: one per tuned checkpoint."""

    groups: tuple[Group, ...]
    unmatched: tuple[Unmatched, ...]

    @property
    def sides(self) -> list[Sides]:
        """The tensors of each group, as a plan takes them."""
        return [group.sides for group in self.groups]


def align(
    base: Checkpoint,
    tuned: Sequence[Checkpoint],
    include: str | None = None,
    exclude: str | None = None,
    repeats: Sequence[Mapping[str, bool]] = (),
) -> Alignment:
    """Find the counterparts of the base's parameters in each of ``tuned``.

    Buffers and scales are not parameters and are not listed. include, exclude: as in `filters.select`, applied to the name in the
    base, or to a tensor's own name if it is extra. repeats: for the base and each tuned checkpoint, which heads hold the values of
    the embedding (`ties.repeated_heads`); if omitted, only the configurations determine what is tied.

    Takes time linear in the number of tensors. If no tensors match, ``groups`` is empty and nothing is raised. Raises InvalidFilter.
    """
    parameters = _parameters(base)
    chosen = {tensor.name for tensor in select(parameters, include, exclude)}
    known = repeats or [{}] * (1 + len(tuned))
    tied = tied_heads(base, tuned, known[0])
    columns: list[list[Tensor | None]] = []
    unmatched: list[Unmatched] = []
    for checkpoint, repeated in zip(tuned, known[1:], strict=True):
        partners, extra = _partners(parameters, _parameters(checkpoint))
        repeating, found = tied_heads(checkpoint, (base,), repeated), Unmatched()
        columns.append([_counterpart(each, partners, tied, repeating, found) if each.name in chosen else None for each in parameters])
        for tensor in passing(extra, include, exclude):
            (found.tied if tensor.name in repeating else found.extra).append(tensor)
        unmatched.append(found)
    return Alignment(tuple(_groups(parameters, columns)), tuple(unmatched))


def _parameters(checkpoint: Checkpoint) -> list[Tensor]:
    return [tensor for tensor in checkpoint.tensors if not tensor.buffer and not tensor.holds_scales]


def _groups(parameters: Sequence[Tensor], columns: Sequence[Sequence[Tensor | None]]) -> Iterator[Group]:
    for base, *tuned in zip(parameters, *columns, strict=True):
        shapes = {tensor.shape for tensor in tuned if tensor is not None}
        if shapes:
            alike = base.shape in shapes
            yield Group(base if alike else _first_rows(base, max(shape[0] for shape in shapes)), tuple(tuned))


def _first_rows(tensor: Tensor, rows: int) -> Tensor:
    """The first ``rows`` of a tensor; the whole tensor if it has no more rows, or no axes."""
    if not tensor.shape or tensor.shape[0] <= rows:
        return tensor
    shape = (rows, *tensor.shape[1:])
    strides = None if tensor.strides is None else normal_strides(shape, tensor.strides)
    cut = replace(tensor, shape=shape, strides=strides)
    return replace(cut, nbytes=cut.elements * cut.bits // 8)


def _partners(base: Sequence[Tensor], tuned: Sequence[Tensor]) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Name in the base -> the tensor of the tuned checkpoint, which may have another name and shape; and those without a partner."""
    names = {tensor.name for tensor in base}
    partners = {tensor.name: tensor for tensor in tuned if tensor.name in names}
    extra = [tensor for tensor in tuned if tensor.name not in names]
    if extra and len(partners) < len(base):
        pairs = renamed([tensor for tensor in base if tensor.name not in partners], extra, _fit)
        partners |= {ours.name: theirs for ours, theirs in pairs}
        taken = {theirs.name for _, theirs in pairs}
        extra = [tensor for tensor in extra if tensor.name not in taken]
    return partners, extra


def _counterpart(base: Tensor, partners: Mapping[str, Tensor], tied: Set[str], repeating: Set[str], found: Unmatched) -> Tensor | None:
    """The tensor to compare with ``base``, cut to its rows, or None; ``found`` receives what is to be reported.

    tied, repeating: names of the heads that repeat the embedding, in the base and in the tuned checkpoint.
    """
    tuned = partners.get(base.name)
    if base.name in tied and (tuned is None or tuned.name in repeating):
        found.tied.append(base)
        return None
    if tuned is None:
        found.missing.append(base)
        return None
    if not (base.has_values and tuned.has_values):
        found.integers.append(tuned if base.has_values else base)
        return None
    if not _fit(base, tuned):
        found.misshapen.append(Misshapen(base, tuned, sorted(base.shape) == sorted(tuned.shape)))
        return None
    if base.name != tuned.name:
        found.renamed.append(Pair(base, tuned))
    if base.shape != tuned.shape:
        found.resized.append(Resized(base, tuned, min(base.shape[0], tuned.shape[0])))
        return _first_rows(tuned, base.shape[0])
    return tuned


def _fit(base: Tensor, tuned: Tensor) -> bool:
    """Whether the shapes allow comparing the two tensors, or their first rows."""
    if base.shape == tuned.shape:
        return True
    resizable = base.role in ("embedding", "head") and len(base.shape) == len(tuned.shape) in (1, 2)
    return resizable and base.shape[1:] == tuned.shape[1:]
