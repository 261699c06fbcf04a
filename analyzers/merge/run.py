"""Merges adapters into their base: reference -> computed tensors -> a new folder, read back before it gets its name."""

import threading
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Access, Chunk, MergedCheckpoint, Span, open_whole, quoted, quoted_names, stream, whole_spans
from analyzers.checkpoints.adapters.configuration import FILE as ADAPTER_CONFIG
from analyzers.checkpoints.repository import read_file
from analyzers.checkpoints.stated_dtype import TORCH_NAMES
from analyzers.core import limits
from analyzers.core.errors import InvalidCheckpoint, InvalidRequest, UnsupportedWeights
from analyzers.core.formatting import plural
from analyzers.core.notes import Note
from analyzers.core.report import check_size
from analyzers.core.request import Progress
from analyzers.merge.report import MergeReport, Target
from analyzers.merge.words import WORDS
from analyzers.numerics.conversions import values_of
from analyzers.numerics.narrowing import Narrow, rounded
from analyzers.shrink.config_dtype import stated_config
from analyzers.shrink.output_folder import Folder
from analyzers.shrink.plan import Planned, check_supported, names_in_files
from analyzers.shrink.run import check_outside, new_folder

Dtype = Narrow | Literal["F32"]
_STORED: dict[Target, Dtype] = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}
_CONVERTED = ("F64", "F32", "BF16", "F16")


def merge(
    model: str, out: str, to: Target = "fp32", access: Access | None = None, *, largest: int | None = None
) -> Iterator[Progress | MergeReport]:
    """Write ``model``, BASE+ADAPTER or an adapter whose configuration names its base, into the new folder ``out``.

    Yields progress in bytes, then the report. Weights are computed in fp32 as peft does (`adapters.merged_file`), rounded once to ``to``
    (nearest even), and with all other plain floats of the base stored in it; the files, configuration and tokenizer are the base's. The
    result is read back and compared before the folder gets its name. Memory does not depend on the size of the model. Raises
    InvalidRequest if ``out`` cannot be written or nothing is to be merged, ModelTooLarge if the disk is too small, LimitExceeded,
    UnsupportedWeights for weights that would be lost, InvalidCheckpoint if the adapter makes weights NaN or infinite, and the errors of
    reads.
    """
    target = new_folder(out)
    yield Progress(done=0, total=0, unit="bytes", note="reading headers")
    with open_whole(model, access or Access()) as checkpoint:
        if not isinstance(checkpoint, MergedCheckpoint):
            raise InvalidRequest(f"{quoted(model)} is no adapter: name a base and an adapter to merge, BASE+ADAPTER.")
        base = checkpoint.merge.base
        check_outside(target, base)
        check_size(checkpoint.nbytes, largest, "the command line")
        if base.quantization is not None:
            raise UnsupportedWeights(
                f"The weights of the base are quantized ({base.quantization}): merge the adapter into the model they were quantized from."
            )
        check_supported(base, "merge")
        plan = _plan(checkpoint, _STORED[to])
        folder = _MergedFolder(checkpoint, plan, to)
        measured = yield from _measure(checkpoint, _STORED[to])
        broken = Counter({name: int(sums[4]) for name, sums in measured.items() if sums[4]})
        if broken:
            raise InvalidCheckpoint(
                f"The adapter makes {plural(broken.total(), 'weight')} of {quoted_names([name for name, _ in broken.most_common()])} NaN "
                "or infinite. Nothing was written: look for what is not finite in the matrices of the adapter (mantissa check)."
            )
        yield from folder.write(target)
        own = [each for each in plan if each.tensor.name not in measured]
        touched, kept, lost, norm, _ = sum((measured[name] for name in checkpoint.sources), np.zeros(5)).tolist()
        report = MergeReport(
            model=checkpoint.ref,
            commit=checkpoint.commit,
            out=out,
            to=to,
            bytes=folder.nbytes,
            tensors=len(checkpoint.tensors),
            computed=len(checkpoint.sources),
            replaced=len(measured) - len(checkpoint.sources),
            converted=sum(each.narrows for each in own),
            copied=sum(not each.narrows for each in own),
            changed=sum(bool(sums[0]) for sums in measured.values()),
            touched=int(touched),
            changed_share=kept / touched if touched else None,
            lost_norm=float(np.sqrt(lost / norm)) if norm else None,
            overflowed=folder.overflowed.total(),
            written=tuple(folder.written),
            answer=WORDS.note("merged", out=out, bytes=folder.nbytes, to=to, tensors=len(checkpoint.tensors)),
            notes=checkpoint.notes,
        )
        yield report.model_copy(update={"notes": (*report.notes, *_notes(report, folder))})


def _notes(report: MergeReport, folder: "_MergedFolder") -> Iterator[Note]:
    if same := report.computed + report.replaced - report.changed:
        yield WORDS.note("unchanged", tensors=same)
    if report.changed_share is not None and report.to != "fp32":
        figures = {"touched": report.touched, "changed_share": report.changed_share, "lost_norm": report.lost_norm}
        yield WORDS.note("lost", to=report.to, **figures)
    if found := folder.overflowed:
        names = tuple(name for name, _ in found.most_common())
        instead = "fp32" if report.to == "bf16" else "bf16 or fp32"
        yield WORDS.note("overflowed", weights=found.total(), to=report.to, names=names, instead=instead)
    if folder.unread:
        yield WORDS.note("copied", files=tuple(folder.unread))


class _MergedFolder(Folder):
    """The folder of a merged checkpoint, with the files of its base. overflowed: finite weights stored as infinite, by tensor."""

    def __init__(self, checkpoint: MergedCheckpoint, plan: list[Planned], to: Target) -> None:
        self._to, self._ties = to, {name for found in checkpoint.merge.changes for name in found.ties}
        self.overflowed: Counter[str] = Counter()
        self._lock = threading.Lock()
        super().__init__(checkpoint, plan, base=checkpoint.merge.base)
        # An adapter stored with its base is merged now: transformers would load it on top of the merged weights.
        own = [each.checkpoint for each in checkpoint.merge.adapters if each.checkpoint.ref == checkpoint.merge.base.ref]
        for path in {file.path for each in own for file in each.files} | ({ADAPTER_CONFIG} if own else set()):
            self._copied.pop(path, None)
        self.unread = [path for path in self.unread if path in self._copied]

    def _convert(self, codes: NDArray[Any], planned: Planned) -> NDArray[Any]:
        dtype, to = planned.tensor.counted_as, _STORED[self._to]
        stored = rounded(codes, dtype, to)
        infinite = np.isinf(values_of(stored, to))
        if infinite.any() and (beyond := int(np.isfinite(values_of(codes[infinite], dtype)).sum())):
            with self._lock:
                self.overflowed[planned.tensor.name] += beyond
        return stored

    def _configs(self) -> dict[str, bytes]:
        """Return config.json with the dtype, the rows of a replaced embedding, and a head that is no longer tied."""
        base, path = self._checkpoint, "config.json"
        if not 0 < base.repository.files.get(path, 0) <= limits.CONFIG_BYTES:
            return {}
        untied = any(tensor.name in self._ties for tensor in self._read.tensors)
        rows = {t.name: t.shape[0] for t in base.tensors if t.role == "embedding" and len(t.shape) == 2}
        grown = {t.shape[0] for t in self._read.tensors if t.name in rows and t.shape[0] != rows[t.name]}
        changes: dict[str, Any] = ({"tie_word_embeddings": False} if untied else {}) | (
            {"vocab_size": grown.pop()} if len(grown) == 1 else {}
        )
        dtype = TORCH_NAMES[_STORED[self._to]]
        written = stated_config(read_file(base.repository, path), dtype, changes)
        self.config_dtype = dtype if written else None
        return {path: written} if written else {}


def _plan(checkpoint: MergedCheckpoint, to: Dtype) -> list[Planned]:
    base = checkpoint.merge.base
    names, files = names_in_files(base), {tensor.name: tensor.file for tensor in base.tensors}
    last = max(files.values(), default=0)
    return [
        Planned(
            tensor,
            names.get(tensor.name, tensor.name),
            to if tensor.dtype in _CONVERTED and not tensor.buffer else tensor.dtype,
            place=files.get(tensor.name, last),
        )
        for tensor in checkpoint.tensors
    ]


def _measure(checkpoint: MergedCheckpoint, to: Dtype) -> Generator[Progress, None, dict[str, NDArray[np.float64]]]:
    """Compare each computed or replaced tensor with the base's, and the update with what ``to`` keeps of it.

    Returns by name: touched weights, those among them that differ in ``to``, the squared norms of what is lost and of the update, over
    weights that are finite in ``to``, and the number of NaN or infinite weights that are finite in the base.
    """
    tensors = {tensor.name: tensor for tensor in checkpoint.tensors}
    before = {tensor.name: tensor for tensor in checkpoint.merge.base.tensors} | dict(checkpoint.sources)
    names = [*checkpoint.sources, *(name for found in checkpoint.merge.changes for name in found.saved)]
    found = {name: np.zeros(5) for name in names}
    groups = [(tensors[name], old if (old := before.get(name)) and old.shape == tensors[name].shape else None) for name in found]
    spans = whole_spans(groups)

    def work(span: Span, chunks: Iterator[Chunk]) -> NDArray[np.float64]:
        sums = np.zeros(5)
        for chunk in chunks:
            new, old = (
                np.zeros(0, np.uint32) if side is None or codes is None else rounded(np.asarray(codes), side.counted_as, "F32")
                for side, codes in zip(span.sides, chunk.sides, strict=True)
            )
            old = old if old.size else np.zeros_like(new)
            stored, kept = (values_of(rounded(each, "F32", to), to) for each in (new, old))
            after, base = values_of(new, "F32"), values_of(old, "F32")
            with np.errstate(all="ignore"):
                update, left = after - base, stored - kept
                touched = after != base
                finite = touched & np.isfinite(update) & np.isfinite(left)
                sums += (
                    touched.sum(), (left[touched] != 0).sum(), np.square(left - update)[finite].sum(), np.square(update[finite]).sum(),
                    (np.isfinite(base) & ~np.isfinite(after)).sum(),
                )  # fmt: skip
        return sums

    total = sum(span.nbytes for span in spans)
    with closing(stream([checkpoint, checkpoint], spans, work)) as steps:  # type: ignore[type-var]
        for step in steps:
            if step.span is not None and step.result is not None:
                found[step.span.tensor.name] += step.result
            yield Progress(done=step.bytes_read, total=total, unit="bytes", note="measuring what the dtype loses")
    return found
