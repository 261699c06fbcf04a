"""Rules about a checkpoint alone, each a function that yields findings. `RULES` need values, `file_rules` does not."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from analyzers.check.report import Finding, Level
from analyzers.check.words import finding
from analyzers.checkpoints import Checkpoint, Tensor, is_copy, replaced_pairs
from analyzers.checkpoints.stated_dtype import TORCH_NAMES
from analyzers.core.coverage import Coverage, FileCode
from analyzers.core.formatting import magnitude
from analyzers.core.notes import Value
from analyzers.core.tensor_words import dtype_name
from analyzers.dtype import DtypeReport
from analyzers.dtype.statistics import TensorResult
from analyzers.grids import describe
from analyzers.write.plan import Planned

# Different matrices with equal statistics that a further matrix is compared with, at most
_ORIGINALS = 4
# Grids that a finding names
_GRIDS = 3
# Notes of an open checkpoint on a wrong index. Most loaders ignore a wrong count of bytes.
INDEX: dict[str, tuple[Level, str]] = {
    "index-wrong-files": ("error", "index-disagrees-with-files"),
    "index-missing-names": ("error", "index-disagrees-with-files"),
}
# Files that were not read, by why. Those that by name repeat what was read are only a remark.
_NOT_READ: dict[FileCode, tuple[Level, str]] = {
    "outside": ("warning", "files-not-read"),
    "format": ("warning", "files-not-read"),
    "repeats": ("info", "copies-not-read"),
}


@dataclass(frozen=True, slots=True)
class Facts:
    """The input of the rules.

    report: on all values; results: of every tensor; plan: the plan of `shrink`, empty if it refuses; copies: tensors stored twice in two
    layouts, each mapped to the tensor with the same values.
    """

    checkpoint: Checkpoint
    report: DtypeReport
    results: Sequence[TensorResult]
    plan: Sequence[Planned]
    copies: Mapping[str, Tensor]


def non_finite(facts: Facts) -> Iterator[Finding]:
    """Find values that are NaN or infinite."""
    found = {r.tensor.name: r.statistics for r in facts.results if r.statistics.nan or r.statistics.inf}
    if found:
        nan, inf = (sum(getattr(each, kind) for each in found.values()) for kind in ("nan", "inf"))
        yield finding("non-finite", "error", "weights-not-finite", list(found), nan=nan, inf=inf)


def index(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Find contradictions between the index and the files."""
    yield from (finding("index", *INDEX[note.code], **note.values) for note in checkpoint.notes if note.code in INDEX)
    pairs = replaced_pairs(checkpoint)
    others = [(one, other) for one, other in pairs if one.strides is other.strides is None and not is_copy(checkpoint, one, other)]
    if others:
        one, other = others[0]
        files = {"file": checkpoint.files[one.file].path, "other": checkpoint.files[other.file].path}
        yield finding("index", "error", "shards-differ", [each.name for each, _ in others], **files | {"name": other.name})


def not_read(coverage: Coverage) -> Iterator[Finding]:
    """Find files that were not judged and may hold weights of the model."""
    for level, code in dict.fromkeys(_NOT_READ.values()):
        paths = [each.path for each in coverage.files_not_read if _NOT_READ.get(each.code) == (level, code)]
        if paths:
            yield finding("not-read", level, code, paths)


def upcast(facts: Facts) -> Iterator[Finding]:
    """Find tensors in more bits than their values need, if at least one of them is proven to come from the narrower format."""
    verdicts = ("upcast-from-bf16", "upcast-from-fp16")
    proven = {result.tensor.name for result in facts.results if result.judgement.verdict in verdicts}
    narrow = [planned for planned in facts.plan if planned.narrows]
    if any(planned.tensor.name in proven for planned in narrow):
        saved = sum(planned.tensor.nbytes - planned.nbytes for planned in narrow)
        values: dict[str, Value] = {
            "formats": tuple(sorted({dtype_name(planned.to or "") for planned in narrow})),
            "bytes": saved,
            "share": saved / max(1, facts.checkpoint.nbytes),
            "model": shlex.quote(facts.checkpoint.ref),
        }
        yield finding("upcast", "warning", "stored-wider-than-needed", [planned.tensor.name for planned in narrow], saved, **values)


def stored_twice(facts: Facts) -> Iterator[Finding]:
    """Find matrices that repeat another one. Matrices of a single value are left to other rules."""
    groups: dict[tuple[object, ...], list[Tensor]] = {}
    for result in facts.results:
        tensor, found = result.tensor, result.statistics
        if len(tensor.shape) > 1 and found.abs_max != found.abs_min:
            groups.setdefault((tensor.stored_dtype, tensor.shape, found), []).append(tensor)
    tied = {planned.tensor.name: planned.original for planned in facts.plan if planned.to is None}
    originals = tied | {name: other.name for name, other in facts.copies.items()}  # name of a copy -> the tensor that it repeats
    for tensors in groups.values():
        firsts: list[Tensor] = []
        # Equal statistics make a candidate; the bytes decide.
        for tensor in sorted((each for each in tensors if each.name not in originals), key=lambda tensor: tensor.role == "head"):
            first = next((each for each in firsts[:_ORIGINALS] if is_copy(facts.checkpoint, each, tensor)), None)
            if first is None:
                firsts.append(tensor)
            else:
                originals[tensor.name] = first.name
    copies = [tensor for tensor in facts.checkpoint.tensors if tensor.name in originals]
    if copies:
        after = {each.tensor.name: each.nbytes for each in facts.plan if each.narrows}  # bytes that `upcast` saves count only once
        # Saved by shrink, which keeps all other copies, or by saving one layout alone.
        saved = sum(tensor.on_disk.nbytes for tensor in copies if tensor.name in tied or tensor.name in facts.copies)
        nbytes = sum(after.get(tensor.name, tensor.on_disk.nbytes) for tensor in copies)
        names = [tensor.name for tensor in copies]
        yield finding("stored-twice", "warning", "stored-twice", names, saved, bytes=nbytes, other=originals[names[0]])


def config_dtype(facts: Facts) -> Iterator[Finding]:
    """Find a configuration whose dtype is not that of most parameters."""
    stated = facts.report.config_dtype or ""
    stored = facts.report.lineage.stored
    if stored in TORCH_NAMES and stated in TORCH_NAMES.values() and stated != TORCH_NAMES[stored] and not facts.report.quantization_config:
        yield finding("config-dtype", "warning", "config-states-another-dtype", stated=stated, stored=stored)


def untouched(facts: Facts) -> Iterator[Finding]:
    """Find constant tensors, and norms mostly at the usual initial value. Biases at zero are normal."""
    rows = [row for row in facts.report.untouched if row.value and not row.name.endswith("bias")]
    if rows:
        values = tuple(map(magnitude, sorted({row.value for row in rows})[:3]))
        yield finding("untouched", "warning", "mostly-one-value", [row.name for row in rows], values=values)


def zero_tensor(facts: Facts) -> Iterator[Finding]:
    """Find tensors of zeros other than biases."""
    names = [row.name for row in facts.report.untouched if row.value == 0 and row.share == 1 and not row.name.endswith("bias")]
    if names:
        yield finding("zero-tensor", "warning", "tensors-of-zeros", names)


def pickled(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Find weights in files that can run code when they are loaded."""
    if checkpoint.pickled:
        yield finding("pickled", "warning", "pickled-weights", list(checkpoint.pickled))


def fp16_overflow(facts: Facts) -> Iterator[Finding]:
    """Find weights that become infinite in fp16: a warning if the configuration asks for fp16, else a remark."""
    found = {r.tensor.name: r.statistics.fp16_overflow for r in facts.results if r.statistics.fp16_overflow}
    if found:
        stated = facts.report.config_dtype
        level: Level = "warning" if stated == "float16" else "info"
        yield finding("fp16-overflow", level, "infinite-in-fp16", list(found), weights=sum(found.values()), stated=stated or "no dtype")


def fossil_rows(facts: Facts) -> Iterator[Finding]:
    """Find rows that are exact in a narrower format in tensors that are not: rows not updated since a conversion."""
    found = {result.tensor.name: result.judgement.fossil_rows for result in facts.results if result.judgement.fossil_rows}
    if found:
        yield finding("fossil-rows", "info", "rows-not-updated", list(found), rows=sum(found.values()))


def grid(facts: Facts) -> Iterator[Finding]:
    """Find tensors that a quantizer left on its grid. Bytes that `upcast` saves count only once."""
    on_grid = {r.tensor.name: r for r in facts.results if r.judgement.grid is not None and r.judgement.grid.proven}
    if on_grid:
        after = {each.tensor.name: each.nbytes for each in facts.plan if each.narrows}
        rows = [row for row in facts.report.grids if row.proven]
        needed = sum(int(row.bits_needed * row.parameters / 8) for row in rows)
        saved = max(0, sum(after.get(name, result.tensor.nbytes) for name, result in on_grid.items()) - needed)
        grids = tuple(map(describe, rows[:_GRIDS]))
        yield finding("grid", "info", "values-on-a-grid", list(on_grid), saved, grids=grids, bytes=saved)


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    non_finite, upcast, stored_twice, config_dtype, untouched, zero_tensor, fp16_overflow, fossil_rows, grid,
)  # fmt: skip


def file_rules(checkpoint: Checkpoint, coverage: Coverage) -> Iterator[Finding]:
    """Apply the rules that need no values."""
    yield from index(checkpoint)
    yield from not_read(coverage)
    yield from pickled(checkpoint)
