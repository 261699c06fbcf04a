"""The part of the report about an adapter: its modules, and what survives merging it. Field names are the JSON contract.

The update of a matrix W is D = merged - W, of the checkpoint with the adapter merged in, in fp32. round() stores a matrix in a format.
"""

from typing import Literal, get_args

from analyzers.base import CheckpointFacts
from analyzers.records import Record

SurvivalFormat = Literal["bf16", "fp16", "fp8", "int4"]
# Tensors, and first values of each, that tell whether an adapter stored with its base has the one that it is compared with
SOURCES, FIRST = 16, 4096
SURVIVAL_FORMATS: tuple[SurvivalFormat, ...] = get_args(SurvivalFormat)


class AdapterModule(Record):
    """One module that the adapter changes. name: of the tensor in the base.

    rank: of the stored factors; rank_used: number of singular values of s B A above max(m, n) 2^-23 of the largest; effective_rank: exp of
    the entropy of these, normalised. All three are null for updates other than one s B A, as with DoRA. scale: s. relative_norm: |D| / |W|,
    in quick mode estimated from the values read, of which there are values_read. empty: whether s B A is 0. null: not read, or not defined.
    """

    name: str
    role: str
    layer: int | None
    rank: int | None
    scale: float | None
    values_read: int
    relative_norm: float | None
    rank_used: int | None
    effective_rank: float | None
    empty: bool | None


class AdapterOverlap(Record):
    """Two adapters of the same base. first, second: their references; modules: number of those that both change with low-rank updates.

    cosine: of the two updates, over these modules: below 0 they partly cancel. cosine_by_chance: its standard deviation for random
    matrices. rows, columns: mean squared cosine of the principal angles between the row spaces, and between the column spaces, averaged
    over the modules: 1 if one contains the other; rows_by_chance, columns_by_chance: its mean for random subspaces; smallest_angle: the
    smallest of all principal angles, in degrees. worst: the module with the lowest cosine, worst_cosine.
    """

    first: str
    second: str
    modules: int
    cosine: float | None
    cosine_by_chance: float | None
    rows: float | None
    rows_by_chance: float | None
    columns: float | None
    columns_by_chance: float | None
    smallest_angle: float | None
    worst: str | None
    worst_cosine: float | None


class SurvivalRow(Record):
    """Survival in one format of some of the updates. touched: weights with an update, D != 0, among those read.

    changed_share: share of these whose value in the format changes. lost_norm: |round(W + D) - round(W) - D| / |D| over them: 0 if the
    update survives, 1 if nothing changes, more if rounding errors exceed the update. low, high: a 95% interval of lost_norm, in quick mode.
    overflowed: weights that become infinite; they are left out of lost_norm.
    """

    touched: int
    changed_share: float | None
    lost_norm: float | None
    low: float | None = None
    high: float | None = None
    overflowed: int = 0


class SurvivalPart(SurvivalRow):
    """The survival of one module, or of all modules of one role. name: of the tensor in the base, or the role."""

    name: str


class Survival(SurvivalRow):
    """Survival of the whole update in one format, as far as its modules match the base. worst: modules, those that lose most first."""

    worst: tuple[SurvivalPart, ...] = ()
    roles: tuple[SurvivalPart, ...] = ()


class Adapter(Record):
    """An adapter of the base, or several, merged into it.

    adapters: as they are stored; kind: LoRA, rsLoRA, DoRA, ...; rank, scale: the largest of its modules. modules: tensors of the base that
    change; unmatched: modules of the adapter that match nothing in the base; both at most `limits.REPORT_TENSORS`, of modules_total and
    unmatched_total. tied_drift: |head - embedding| / |embedding| after the merge if the base ties them and the adapter changes at least one
    of them, else null. overlap: of each pair of adapters. survival: by format, of finite weights; null where nothing could be measured.
    non_finite: merged weights read that are NaN or infinite where the base's are finite; null in reports made before it was counted.
    """

    adapters: tuple[CheckpointFacts, ...]
    kind: str
    rank: int | None
    scale: float | None
    modules: tuple[AdapterModule, ...]
    modules_total: int
    unmatched: tuple[str, ...]
    unmatched_total: int
    tied_drift: float | None
    overlap: tuple[AdapterOverlap, ...] = ()
    survival: dict[SurvivalFormat, Survival | None]
    non_finite: int | None = None
