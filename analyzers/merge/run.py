"""Merges adapters into their base: reference -> computed tensors -> a new folder, read back before it gets its name."""

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers import limits
from analyzers.base import Progress, check_size
from analyzers.checkpoints import Access, Chunk, MergedCheckpoint, Span, open_whole, quoted, stream, whole_spans
from analyzers.errors import InvalidRequest, UnsupportedWeights
from analyzers.merge.report import Dtype, MergeReport
from analyzers.numerics.conversions import values_of
from analyzers.numerics.narrowing import Narrow, rounded
from analyzers.shrink.config_dtype import stated_config
from analyzers.shrink.output_files import read_whole
from analyzers.shrink.output_folder import Folder
from analyzers.shrink.plan import Planned, check_supported, names_in_files
from analyzers.shrink.run import check_outside, new_folder

_STORED: dict[Dtype, Narrow] = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_CONVERTED = ("F64", "F32", "BF16", "F16")


def merge(
    model: str, out: str, dtype: Dtype = "float32", access: Access | None = None, *, largest: int | None = None
) -> Iterator[Progress | MergeReport]:
    """Write ``model``, BASE+ADAPTER or an adapter whose configuration names its base, into the new folder ``out``.

    Yields progress in bytes, then the report. Weights are computed in fp32 as peft does (`adapters.merged_file`), rounded once to ``dtype``
    (nearest even), and with all other plain floats of the base stored in it; the files, configuration and tokenizer are the base's. The
    result is read back and compared before the folder gets its name. Memory does not depend on the size of the model. Raises
    InvalidRequest if ``out`` cannot be written or nothing is to be merged, ModelTooLarge if the disk is too small, LimitExceeded,
    UnsupportedWeights for weights that would be lost, and the errors of reads.
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
        changed = {*checkpoint.sources, *(name for each in checkpoint.merge.changes for name in each.saved)}
        folder = _MergedFolder(checkpoint, _plan(checkpoint, _STORED[dtype]), dtype)
        touched, share, lost = yield from _loss(checkpoint, _STORED[dtype])
        yield from folder.write(target)
        copied = [f"Copied as it is: {quoted(path, 200)}, not compared with what was stored." for path in folder.unread]
        yield MergeReport(
            model=checkpoint.ref,
            commit=checkpoint.commit,
            out=out,
            dtype=dtype,
            bytes=folder.nbytes,
            tensors=len(checkpoint.tensors),
            changed=len(changed),
            touched=touched,
            changed_share=share,
            lost_norm=lost,
            written=tuple(folder.written),
            notes=(*checkpoint.notes, *copied),
        )


class _MergedFolder(Folder):
    """The folder of a merged checkpoint, with the files of its base."""

    def __init__(self, checkpoint: MergedCheckpoint, plan: list[Planned], dtype: Dtype) -> None:
        self._dtype, self._ties = dtype, {name for found in checkpoint.merge.changes for name in found.ties}
        super().__init__(checkpoint, plan, base=checkpoint.merge.base)

    def _convert(self, codes: NDArray[Any], dtype: str, to: Narrow) -> NDArray[Any]:
        return rounded(codes, dtype, to)

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
        written = stated_config(read_whole(base, path), self._dtype, changes)
        self.config_dtype = self._dtype if written else None
        return {path: written} if written else {}


def _plan(checkpoint: MergedCheckpoint, to: Narrow) -> list[Planned]:
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


def _loss(checkpoint: MergedCheckpoint, to: Narrow) -> Generator[Progress, None, tuple[int, float | None, float | None]]:
    """Compare the update with what ``to`` keeps of it: touched weights, the share that changes, and the share of the norm that is lost."""
    computed = {tensor.name: tensor for tensor in checkpoint.tensors}
    spans = whole_spans([(computed[name], source) for name, source in checkpoint.sources.items()])

    def work(span: Span, chunks: Iterator[Chunk]) -> NDArray[np.float64]:
        found = np.zeros(4)
        for chunk in chunks:
            sums, weights = (np.asarray(side) for side in chunk.sides)
            before = next(side.counted_as for side in span.sides[1:] if side is not None)
            update = values_of(sums, "F32") - values_of(rounded(weights, before, "F32"), "F32")
            kept = values_of(rounded(sums, "F32", to), to) - values_of(rounded(weights, before, to), to)
            touched = update != 0
            with np.errstate(all="ignore"):
                found += touched.sum(), (kept[touched] != 0).sum(), np.square(kept - update).sum(), np.square(update).sum()
        return found

    total, sums = sum(span.nbytes for span in spans), np.zeros(4)
    with closing(stream([checkpoint, checkpoint], spans, work)) as steps:  # type: ignore[type-var]
        for step in steps:
            if step.result is not None:
                sums += step.result
            yield Progress(done=step.bytes_read, total=total, unit="bytes", note="measuring what the dtype loses")
    touched, changed, lost, norm = sums.tolist()
    finite = bool(touched) and np.isfinite(lost) and 0 < norm < np.inf
    return int(touched), changed / touched if touched else None, float(np.sqrt(lost / norm)) if finite else None
