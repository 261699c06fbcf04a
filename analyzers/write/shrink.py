"""Shrinks a checkpoint: checkpoint -> which dtype holds each tensor -> a new folder, read back before it gets its name."""

from collections.abc import Iterator
from typing import Any, cast

from numpy.typing import NDArray

from analyzers.checkpoints import Access, Chunk, open_checkpoint, quoted
from analyzers.checkpoints.weight_files.file_names import SAFETENSORS
from analyzers.core.errors import InvalidCheckpoint
from analyzers.core.formatting import size
from analyzers.core.notes import Note
from analyzers.core.report import check_size
from analyzers.core.request import Progress
from analyzers.numerics.conversions import Narrow, narrowed_exactly
from analyzers.write.folder import Folder, check_outside, new_folder
from analyzers.write.plan import NothingToShrink, Planned, plan_shrink
from analyzers.write.report import ShrinkReport, ShrinkTo, ShrunkTensor
from analyzers.write.words import WORDS


def shrink(
    model: str, out: str, to: ShrinkTo = "auto", access: Access | None = None, *, changed_only: bool = False, largest: int | None = None
) -> Iterator[Progress | ShrinkReport]:
    """Store ``model`` in the new folder ``out``, each F32 tensor in BF16 or F16, if that holds every value of it bit for bit.

    Yields progress in bytes, then the report. Everything else is unchanged, including other weight files, except the dtype in config.json
    and copies of tied weights and of other shards, which are left out. Of pickles only the weights are stored. The result is read back and
    compared before the folder gets its name; an incomplete folder never has that name. Memory does not depend on the size of the model. to:
    "bf16" or "fp16" considers only that format. access: what may be read. changed_only: write only the files that differ from the
    checkpoint's; largest: most bytes of weights to read. If nothing would become smaller, nothing is written, and the report says why.
    Raises InvalidRequest if ``out`` cannot be written, ModelTooLarge if the disk is too small, LimitExceeded, UnsupportedWeights for
    weights that would be lost, and the errors of reads.
    """
    target = new_folder(out)
    yield Progress(done=0, total=0, unit="bytes", note="reading headers")
    with open_checkpoint(model, access or Access()) as checkpoint:
        check_outside(target, checkpoint)
        before = checkpoint.nbytes
        check_size(before, largest, "the command line")
        about: dict[str, Any] = {"model": checkpoint.ref, "commit": checkpoint.commit, "out": out, "bytes_before": before}
        try:
            plan = yield from plan_shrink(checkpoint, to)
            after = sum(planned.nbytes for planned in plan)
            nothing = _no_gain(plan, to) if after == before else None
        except NothingToShrink as reason:
            nothing = reason.note
        if nothing is not None:
            yield ShrinkReport(**about, bytes_after=before, written=(), answer=nothing, notes=checkpoint.notes)
            return
        folder = Folder(checkpoint, plan, changed_only=changed_only)
        yield Progress(done=0, total=0, unit="bytes", note=f"{size(before)} become {size(after)}")
        yield from folder.write(target, [checkpoint], _narrow)
        pickles = [file.path for file in checkpoint.files if not file.path.endswith(SAFETENSORS)]
        files = {"weights-only": pickles, "old-index": folder.skipped, "copied": folder.unread}
        saved = before - after
        yield ShrinkReport(
            **about,
            bytes_after=after,
            config_dtype=folder.config_dtype,
            tensors=tuple(ShrunkTensor(name=each.tensor.name, from_=each.tensor.dtype, to=each.to) for each in plan),
            written=tuple(folder.written),
            replaced=tuple(folder.replaced),
            answer=WORDS.note("smaller", out=out, after=after, saved=saved, share=saved / before),
            notes=(*checkpoint.notes, *(WORDS.note(code, files=tuple(paths)) for code, paths in files.items() if paths)),
        )


def _narrow(planned: Planned, chunk: Chunk) -> NDArray[Any]:
    narrow = narrowed_exactly(chunk.codes, cast(Narrow, planned.to))
    if narrow is None:
        raise InvalidCheckpoint(f"{quoted(planned.name)} has changed since it was first read. Nothing was kept.")
    return narrow


def _no_gain(plan: list[Planned], to: ShrinkTo) -> Note:
    wide = sum(planned.tensor.dtype == "F32" for planned in plan)
    formats = "bf16 and fp16" if to == "auto" else to
    return WORDS.note("needed", tensors=wide, formats=formats) if wide else WORDS.note("narrow")
