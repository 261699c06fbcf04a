"""Merges adapters into their base: reference -> computed tensors -> a new folder, read back before it gets its name."""

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Access, Chunk, MergedCheckpoint, open_whole, quoted
from analyzers.checkpoints.adapters.configuration import FILE as ADAPTER_CONFIG
from analyzers.core.errors import InvalidCheckpoint, InvalidRequest, UnsupportedWeights
from analyzers.core.notes import Note
from analyzers.core.report import check_size
from analyzers.core.request import Progress
from analyzers.numerics.conversions import Narrow, rounded, values_of
from analyzers.write.folder import Folder, check_outside, new_folder
from analyzers.write.plan import Planned, plan_merge
from analyzers.write.report import MergeReport, MergeTo
from analyzers.write.words import WORDS

Dtype = Narrow | Literal["F32"]
_STORED: dict[MergeTo, Dtype] = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}


def merge(
    model: str, out: str, to: MergeTo = "fp32", access: Access | None = None, *, largest: int | None = None
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
            raise InvalidRequest(f"{quoted(model)} is not an adapter: name a base and an adapter to merge, BASE+ADAPTER.")
        base = checkpoint.merge.base
        check_outside(target, base)
        check_size(checkpoint.nbytes, largest, "the command line")
        if base.quantization is not None:
            raise UnsupportedWeights(
                f"The weights of the base are quantized ({base.quantization}): merge the adapter into the model they were quantized from."
            )
        plan = plan_merge(checkpoint, _STORED[to])
        # An adapter stored with its base is merged now: transformers would load it on top of the merged weights.
        beside = [each.checkpoint for each in checkpoint.merge.adapters if each.checkpoint.ref == base.ref]
        left_out = {file.path for each in beside for file in each.files} | ({ADAPTER_CONFIG} if beside else set())
        folder = Folder(base, plan, left_out=left_out, changes=_settings(checkpoint))
        measured = _Measured(_STORED[to])
        yield from folder.write(target, [checkpoint, checkpoint], measured.convert)
        touched, kept, lost, norm = sum((measured.sums[name] for name in checkpoint.sources), np.zeros(4)).tolist()
        report = MergeReport(
            model=checkpoint.ref,
            commit=checkpoint.commit,
            out=out,
            to=to,
            bytes=folder.nbytes,
            tensors=len(checkpoint.tensors),
            computed=len(checkpoint.sources),
            replaced=sum(each.changed for each in plan) - len(checkpoint.sources),
            touched=int(touched),
            changed_share=kept / touched if touched else None,
            lost_norm=float(np.sqrt(lost / norm)) if norm else None,
            overflowed=measured.overflowed.total(),
            written=tuple(folder.written),
            answer=WORDS.note("merged", out=out, bytes=folder.nbytes, to=to, tensors=len(checkpoint.tensors)),
            notes=checkpoint.notes,
        )
        notes = _notes(report, tuple(name for name, _ in measured.overflowed.most_common()), tuple(folder.unread))
        yield report.model_copy(update={"notes": (*report.notes, *notes)})


def _settings(checkpoint: MergedCheckpoint) -> dict[str, Any]:
    """Return what changes in config.json: a head that is no longer tied, and the rows of a replaced embedding."""
    ties = {name for changes in checkpoint.merge.changes for name in changes.ties}
    untied = {"tie_word_embeddings": False} if any(tensor.name in ties for tensor in checkpoint.tensors) else {}
    rows = {t.name: t.shape[0] for t in checkpoint.merge.base.tensors if t.role == "embedding" and len(t.shape) == 2}
    grown = {t.shape[0] for t in checkpoint.tensors if t.name in rows and t.shape[0] != rows[t.name]}
    return untied | ({"vocab_size": grown.pop()} if len(grown) == 1 else {})


def _notes(report: MergeReport, overflowed: tuple[str, ...], copied: tuple[str, ...]) -> Iterator[Note]:
    if report.changed_share is not None and report.to != "fp32":
        yield WORDS.note("lost", to=report.to, touched=report.touched, changed_share=report.changed_share, lost_norm=report.lost_norm)
    if overflowed:
        instead = "fp32" if report.to == "bf16" else "bf16 or fp32"
        yield WORDS.note("overflowed", weights=report.overflowed, to=report.to, names=overflowed, instead=instead)
    if copied:
        yield WORDS.note("copied", files=copied)


class _Measured:
    """Rounds what is written to ``to``, and compares changed tensors with the base's, from several threads.

    sums: of each changed tensor, weights that are touched, those among them that differ in ``to``, and the squared norms of what is lost
    and of the update, over weights that are finite in ``to``; overflowed: finite weights stored as infinite, by tensor.
    """

    def __init__(self, to: Dtype) -> None:
        self._to = to
        self.sums: dict[str, NDArray[np.float64]] = {}
        self.overflowed: Counter[str] = Counter()
        self._lock = threading.Lock()

    def convert(self, planned: Planned, chunk: Chunk) -> NDArray[Any]:
        """Return the patterns to store of a chunk. Raises InvalidCheckpoint if it is not finite where the base is."""
        name, dtype, to = planned.tensor.name, planned.tensor.counted_as, cast(Dtype, planned.to)
        stored = rounded(chunk.codes, dtype, to)
        infinite = np.isinf(values_of(stored, to))
        beyond = int(np.isfinite(values_of(chunk.codes[infinite], dtype)).sum()) if infinite.any() else 0
        sums = self._changes(planned, chunk) if planned.changed else None
        with self._lock:
            if beyond:
                self.overflowed[name] += beyond
            if sums is not None:
                self.sums[name] = self.sums.get(name, np.zeros(4)) + sums
        return stored

    def _changes(self, planned: Planned, chunk: Chunk) -> NDArray[np.float64]:
        new = rounded(chunk.codes, planned.tensor.counted_as, "F32")
        old = np.zeros_like(new) if planned.before is None else rounded(chunk.sides[1], planned.before.counted_as, "F32")
        after, base = values_of(new, "F32"), values_of(old, "F32")
        if (np.isfinite(base) & ~np.isfinite(after)).any():
            raise InvalidCheckpoint(
                f"The adapter makes weights of {quoted(planned.name)} NaN or infinite. Nothing was kept: look for what is not finite in "
                "its matrices (mantissa check)."
            )
        with np.errstate(all="ignore"):
            update = after - base
            left = values_of(rounded(new, "F32", self._to), self._to) - values_of(rounded(old, "F32", self._to), self._to)
            touched = after != base
            finite = touched & np.isfinite(update) & np.isfinite(left)
            lost, norm = np.square(left - update)[finite].sum(), np.square(update[finite]).sum()
        return np.array([touched.sum(), (left[touched] != 0).sum(), lost, norm], np.float64)
