"""Rules about a checkpoint alone, each a function that yields findings. `RULES` need values, `file_rules` does not."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from analyzers import limits
from analyzers.check.report import Finding, Level, Rule
from analyzers.checkpoints import Checkpoint, Tensor, is_copy, quoted, replaced_pairs
from analyzers.checkpoints.stated_dtype import TORCH_NAMES
from analyzers.coverage import Coverage
from analyzers.dtype_detection import DtypeReport
from analyzers.dtype_detection.statistics import TensorResult
from analyzers.formatting import listed, magnitude, plural, share
from analyzers.grids import describe
from analyzers.shrink import Planned
from analyzers.tensor_words import dtype_name
from analyzers.terminal import some_files

# Different matrices with equal statistics that a further matrix is compared with, at most
_ORIGINALS = 4
# Grids that a finding names, and repeated layers
_GRIDS, _LAYERS = 3, 8
# Notes of an open checkpoint on a wrong index. Most loaders ignore a wrong count of bytes.
_INDEX, _INDEX_SIZE = ("index-wrong-files", "index-missing-names", "index-wrong-size"), "index-wrong-size"


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


def finding(rule: Rule, level: Level, title: str, detail: str, tensors: Sequence[str] = (), saving: int = 0) -> Finding:
    """Make a finding; its names of tensors end after `limits.REPORT_TENSORS`."""
    names = tuple(tensors[: limits.REPORT_TENSORS])
    return Finding(rule=rule, level=level, title=title, detail=detail, saving_bytes=saving, tensors=names)


def non_finite(facts: Facts) -> Iterator[Finding]:
    """Find values that are NaN or infinite."""
    found = {r.tensor.name: r.statistics.tallies for r in facts.results if r.statistics.tallies.nan or r.statistics.tallies.inf}
    if found:
        kinds = {"NaN": sum(tallies.nan for tallies in found.values()), "infinite": sum(tallies.inf for tallies in found.values())}
        numbers = listed([f"{count:,} {kind}" for kind, count in kinds.items() if count])
        detail = f"{numbers} in {plural(len(found), 'tensor')}: go back to the last checkpoint without any. No run recovers from these."
        yield finding("non-finite", "error", "Weights that are not finite", detail, list(found))


def index(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Find contradictions between the index and the files."""
    said = [note for note in checkpoint.notes if note.code in _INDEX]
    if all(note.code == _INDEX_SIZE for note in said):
        for note in said:
            detail = f"{note.text} Programs that plan memory by it go wrong: save the model again."
            yield finding("index", "warning", "The index and the files differ in size", detail)
    else:
        detail = (
            f"{' '.join(note.text for note in said)} transformers loads all tensors of the files that it names; loaders that look them up "
            "in it fail, or miss weights: save the model again."
        )
        yield finding("index", "error", "The shard index disagrees with the files", detail)
    pairs = replaced_pairs(checkpoint)
    others = [(one, other) for one, other in pairs if one.strides is other.strides is None and not is_copy(checkpoint, one, other)]
    if others:
        files = checkpoint.files
        one, other = others[0]
        more = f", and {plural(len(others) - 1, 'more tensor')}" if len(others) > 1 else ""
        detail = (
            f"{quoted(other.name)} has other values in {quoted(files[one.file].path, 200)} than in {quoted(files[other.file].path, 200)}"
            f"{more}: transformers loads those of the last shard, and other loaders may take the others. Delete the wrong ones."
        )
        yield finding("index", "error", "Shards contradict each other", detail, [each.name for each, _ in others])


def not_read(coverage: Coverage) -> Iterator[Finding]:
    """Find files that were not judged and may hold weights of the model; those that by name repeat what was read are only remarks."""
    missed = coverage.missed_files
    if missed:
        them = "them" if len(missed) > 1 else "it"
        detail = f"Not read: {some_files([each.path for each in missed])}. Nothing here is said about the weights in {them}."
        yield finding("not-read", "warning", "Files that were not judged", detail, [each.path for each in missed])
    copies = [each.path for each in coverage.files_not_read if each.code == "repeats"]
    if copies:
        several = len(copies) > 1
        more, were = (f" and {plural(len(copies) - 1, 'more file')}", "were") if several else ("", "was")
        own, they = ("their own", "they hold") if several else ("its own", "it holds")
        detail = f"{copies[0]}{more}, by name without weights of {own}, {were} not judged: nothing here is said about what {they}."
        yield finding("not-read", "info", "Other files were not judged", detail, copies)


def upcast(facts: Facts) -> Iterator[Finding]:
    """Find tensors in more bits than their values need, if at least one of them is proven to come from the narrower format."""
    verdicts = ("upcast-from-bf16", "upcast-from-fp16", "upcast-from-fp32")
    proven = {result.tensor.name for result in facts.results if result.judgement.verdict in verdicts}
    narrow = [planned for planned in facts.plan if planned.narrows]
    if any(planned.tensor.name in proven for planned in narrow):
        saved = sum(planned.tensor.nbytes - planned.nbytes for planned in narrow)
        formats = " or ".join(sorted({dtype_name(planned.to or "") for planned in narrow}))
        shrink = f"mantissa shrink {shlex.quote(facts.checkpoint.ref)} --out FOLDER"
        detail = (
            f"{plural(len(narrow), 'fp32 or fp64 tensor holds', 'fp32 or fp64 tensors hold')} values that fit {formats} bit for bit. "
            f"Stored that way, they take {saved:,} bytes less ({share(saved / max(1, facts.checkpoint.nbytes))}): {shrink}"
        )
        yield finding("upcast", "warning", f"Stored wider than its {formats} values", detail, [p.tensor.name for p in narrow], saved)


def stored_twice(facts: Facts) -> Iterator[Finding]:
    """Find matrices that repeat the bytes of another one. Matrices of a single value are left to other rules."""
    tensors = {tensor.name: tensor for tensor in facts.checkpoint.tensors}
    groups: dict[tuple[object, ...], list[str]] = {}
    for result in facts.results:
        tensor, found = result.tensor, result.statistics
        if len(tensor.shape) > 1 and found.abs_max != found.abs_min:
            alike = tensor.dtype, tensor.shape, found.square, found.abs_max, found.abs_min_nonzero, found.tallies
            groups.setdefault(alike, []).append(tensor.name)
    tied = {planned.tensor.name for planned in facts.plan if planned.to is None}
    copies = [name for name in tensors if name in facts.copies or name in tied]
    known = set(copies)
    originals: dict[str, Tensor] = {}  # name of a copy -> the tensor that it repeats
    for names in groups.values():
        firsts: list[str] = []
        # Equal statistics make a candidate; the bytes decide.
        for name in sorted((name for name in names if name not in known), key=lambda name: tensors[name].role == "head"):
            first = next((other for other in firsts[:_ORIGINALS] if is_copy(facts.checkpoint, tensors[other], tensors[name])), None)
            if first is None:
                firsts.append(name)
            else:
                originals[name] = tensors[first]
    repeats = _repeated_layers([tensors[name] for names in groups.values() for name in names], originals)
    yield from _layer_repeats(repeats, sum(tensors[name].nbytes for each in repeats for name in each.names))
    in_layers = {name for each in repeats for name in each.names}
    copies += [name for name in originals if name not in in_layers]
    if copies:
        after = {each.tensor.name: each.nbytes for each in facts.plan if each.narrows}  # bytes that `upcast` saves count only once
        taken = sum(after.get(name, tensors[name].nbytes) for name in copies)
        # Saved by shrink, which keeps all other copies, or by saving one layout alone.
        saved = sum(tensors[name].nbytes for name in copies if name in tied or name in facts.copies)
        what = "transformers stores each of them separately, so nothing saves these bytes; if they should differ, the wrong ones were saved"
        if tied:
            what = "mantissa shrink leaves such copies out"
        elif any(tensors[name].role in ("embedding", "head") for name in copies):
            what = "tie them in the configuration if the model may"
        if facts.copies:
            other = next(iter(facts.copies.items()))
            what = (
                f"{other[0]} is also in {other[1].name}, another layout of the same weights; keep the layout that config.json's model has"
            )
        detail = f"{plural(len(copies), 'tensor repeats', 'tensors repeat')} another one byte for byte, in {taken:,} bytes: {what}."
        yield finding("stored-twice", "warning", "The same weights are stored twice", detail, copies, saved)


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A layer all of whose matrices are those of another layer of the same stack. names: these matrices."""

    layer: int
    source: int
    names: tuple[str, ...]


def _repeated_layers(matrices: Sequence[Tensor], originals: Mapping[str, Tensor]) -> list[_Repeat]:
    """Find layers that repeat another one. originals: name of a copy -> the matrix that it repeats."""
    layers: dict[tuple[str, int], list[str]] = {}
    for tensor in matrices:
        if tensor.layer is not None:
            layers.setdefault((tensor.name.partition(f".{tensor.layer}.")[0], tensor.layer), []).append(tensor.name)
    repeats = []
    for (stack, layer), names in sorted(layers.items()):
        found = [originals.get(name) for name in names]
        source = found[0].layer if found[0] else None
        there = [name.replace(f"{stack}.{layer}.", f"{stack}.{source}.", 1) for name in names]
        if source is not None and source != layer and [each and each.name for each in found] == there:
            repeats.append(_Repeat(layer, source, tuple(names)))
    return repeats


def _layer_repeats(repeats: Sequence[_Repeat], nbytes: int) -> Iterator[Finding]:
    if repeats:
        pairs = [f"{each.layer} of {each.source}" for each in repeats[:_LAYERS]]
        more = [f"{len(repeats) - _LAYERS:,} more"] if len(repeats) > _LAYERS else []
        names = [name for each in repeats for name in each.names]
        detail = (
            f"All matrices of {plural(len(repeats), 'layer')} are byte-for-byte copies of those of earlier layers "
            f"({', '.join([*pairs, *more])}), as a passthrough merge by mergekit makes them: {plural(len(names), 'matrix', 'matrices')}, "
            f"{nbytes:,} bytes. transformers stores every layer separately, so nothing needs to change if that was intended."
        )
        yield finding("stored-twice", "info", "Repeated layers", detail, names)


def config_dtype(facts: Facts) -> Iterator[Finding]:
    """Find a configuration whose dtype is not that of most parameters."""
    stated = facts.report.config_dtype or ""
    stored = facts.report.lineage.stored
    if stored in TORCH_NAMES and stated in TORCH_NAMES.values() and stated != TORCH_NAMES[stored] and not facts.report.quantization_config:
        detail = f"config.json says {stated}, and most parameters are stored as {stored}: loaders convert them. Correct one of the two."
        yield finding("config-dtype", "warning", "The configuration states another dtype", detail)


def untouched(facts: Facts) -> Iterator[Finding]:
    """Find norms at their initial value and constant tensors, which training may never have changed. Biases at zero are normal."""
    rows = [row for row in facts.report.untouched if row.value and not row.name.endswith("bias")]
    if rows:
        whole = sum(row.share == 1 for row in rows)
        values = " or ".join(magnitude(value) for value in sorted({row.value for row in rows})[:3])
        if whole == len(rows):
            what = f"{plural(whole, 'tensor is', 'tensors are')} constant: every entry is {values}."
        else:
            what = f"{plural(len(rows), 'tensor has', 'tensors have')} at least half of the entries at exactly {values}"
            what += f"; {whole:,} of them constant." if whole else "."
        detail = f"{what} Either they were frozen, or updates too small for bf16 were rounded away: train them with fp32 master weights."
        yield finding("untouched", "warning", "Weights that training may never have changed", detail, [row.name for row in rows])


def zero_tensor(facts: Facts) -> Iterator[Finding]:
    """Find tensors of zeros other than biases."""
    names = [row.name for row in facts.report.untouched if row.value == 0 and row.share == 1 and not row.name.endswith("bias")]
    if names:
        detail = (
            f"{plural(len(names), 'tensor holds', 'tensors hold')} nothing but zeros: never trained, not in use, or lost in a conversion."
        )
        yield finding("zero-tensor", "warning", "Tensors of zeros", detail, names)


def pickled(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Find weights in files that can run code when they are loaded."""
    if checkpoint.pickled:
        files = plural(len(checkpoint.pickled), "weight file")
        detail = f"{files} can run code when loaded: save the model with safe_serialization=True, as safetensors."
        yield finding("pickled", "warning", "Weights in pickled files", detail)


def fp16_overflow(facts: Facts) -> Iterator[Finding]:
    """Find weights that become infinite in fp16: a warning if the configuration asks for fp16, else a remark."""
    found = {r.tensor.name: r.statistics.tallies.fp16_overflow for r in facts.results if r.statistics.tallies.fp16_overflow}
    if found:
        asked = facts.report.config_dtype == "float16"
        number = sum(found.values())
        said = ", which config.json asks for" if asked else ""
        detail = f"{plural(number, 'weight becomes', 'weights become')} infinite in fp16{said}: run it in bf16 or fp32."
        yield finding("fp16-overflow", "warning" if asked else "info", "Weights beyond fp16", detail, list(found))


def fossil_rows(facts: Facts) -> Iterator[Finding]:
    """Find rows that are exact in a narrower format in tensors that are not: rows not updated since a conversion."""
    found = {result.tensor.name: result.judgement.fossil_rows for result in facts.results if result.judgement.fossil_rows}
    if found:
        number = sum(found.values())
        detail = (
            f"{plural(number, 'row is', 'rows are')} exact in a narrower format while the rest of the tensor is not, as rows of tokens are "
            "that never occurred in training."
        )
        yield finding("fossil-rows", "info", "Rows that training did not reach", detail, list(found))


def grid(facts: Facts) -> Iterator[Finding]:
    """Find tensors that a quantizer left on its grid. Bytes that `upcast` saves count only once."""
    on_grid = {r.tensor.name: r for r in facts.results if r.judgement.grid is not None and r.judgement.grid.proven}
    if on_grid:
        after = {each.tensor.name: each.nbytes for each in facts.plan if each.narrows}
        rows = [row for row in facts.report.grids if row.proven]
        needed = sum(int(row.bits_needed * row.parameters / 8) for row in rows)
        saved = max(0, sum(after.get(name, result.tensor.nbytes) for name, result in on_grid.items()) - needed)
        names = listed([f"{describe(row)} ({plural(row.tensors, 'tensor')})" for row in rows[:_GRIDS]])
        others = f" On none of these: {', '.join(facts.report.off_grid)}." if facts.report.off_grid else ""
        detail = (
            f"All values of {plural(len(on_grid), 'tensor')} lie on the grid of a quantizer: {names}. Stored as codes and scales, they "
            f"would take {saved:,} bytes less.{others}"
        )
        yield finding("grid", "info", "Stored wider than the grid of its values", detail, list(on_grid), saved)


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    non_finite, upcast, stored_twice, config_dtype, untouched, zero_tensor, fp16_overflow, fossil_rows, grid,
)  # fmt: skip


def file_rules(checkpoint: Checkpoint, coverage: Coverage) -> Iterator[Finding]:
    """Apply the rules that need no values."""
    yield from index(checkpoint)
    yield from not_read(coverage)
    yield from pickled(checkpoint)
