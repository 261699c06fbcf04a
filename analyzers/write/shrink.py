"""Shrinks a checkpoint: checkpoint -> which dtype holds each tensor -> a new folder, read back before it gets its name."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from typing import Any, cast

from numpy.typing import NDArray

from analyzers.checkpoints import Access, Checkpoint, Chunk, open_checkpoint, quoted
from analyzers.checkpoints.weight_files.file_names import SAFETENSORS
from analyzers.core.errors import InvalidCheckpoint, MantissaError
from analyzers.core.formatting import size
from analyzers.core.notes import Note
from analyzers.core.report import check_size
from analyzers.core.request import Progress
from analyzers.language_models.load_report import LoadingOracle, LoadReport, kept_in_fp32
from analyzers.numerics.conversions import Narrow, narrowed_exactly
from analyzers.write.folder import Folder, check_outside, new_folder
from analyzers.write.plan import NothingToShrink, Planned, plan_shrink
from analyzers.write.report import ShrinkReport, ShrinkTo, ShrunkTensor
from analyzers.write.words import WORDS


def shrink(
    model: str, out: str, to: ShrinkTo = "auto", access: Access | None = None, *, changed_only: bool = False, largest: int | None = None
) -> Iterator[Progress | ShrinkReport]:
    """Store ``model`` in the new folder ``out``, each F32 tensor in BF16 or F16, if that holds every value of it bit for bit.

    Yields progress in bytes, then the report. Tensors that transformers keeps in fp32 stay so; a note says if it cannot be asked.
    Everything else is unchanged, including other weight files, except the dtype in config.json and copies of tied weights and of other
    shards, which are left out. Of pickles only the weights are stored. The result is read back and compared before the folder gets its
    name; an incomplete folder never has that name. Memory does not depend on the size of the model. to: "bf16" or "fp16" considers only
    that format. access: what may be read. changed_only: write only the files that differ from the checkpoint's; largest: most bytes of
    weights to read. If nothing would become smaller, nothing is written, and the report says why. Raises InvalidRequest if ``out`` cannot
    be written, ModelTooLarge if the disk is too small, LimitExceeded, UnsupportedWeights for weights that would be lost, and the errors of
    reads.
    """
    target = new_folder(out)
    yield Progress(done=0, total=0, unit="bytes", note="reading headers")
    with ExitStack() as opened:
        checkpoint = opened.enter_context(open_checkpoint(model, access or Access()))
        check_outside(target, checkpoint)
        before = checkpoint.nbytes
        check_size(before, largest, "the command line")
        about: dict[str, Any] = {"model": checkpoint.ref, "commit": checkpoint.commit, "out": out, "bytes_before": before}
        oracle = LoadingOracle(checkpoint) if _names_a_model(checkpoint) else None
        unknown: list[Note] = []
        try:
            plan = yield from plan_shrink(checkpoint, to, lambda: _kept(oracle, unknown))
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
        files = {"weights-only": pickles, "copied": folder.unread}
        saved = before - after
        yield ShrinkReport(
            **about,
            bytes_after=after,
            config_dtype=folder.config_dtype,
            tensors=tuple(ShrunkTensor(name=each.tensor.name, from_=each.tensor.dtype, to=each.to) for each in plan),
            written=tuple(folder.written),
            replaced=tuple(folder.replaced),
            answer=WORDS.note("smaller", out=out, after=after, saved=saved, share=saved / before),
            notes=(*checkpoint.notes, *(WORDS.note(code, files=tuple(paths)) for code, paths in files.items() if paths), *unknown),
        )


def _names_a_model(checkpoint: Checkpoint) -> bool:
    """Return whether config.json names a model of transformers, some of whose fp32 tensors may have to stay so."""
    wide = any(tensor.dtype == "F32" for tensor in checkpoint.tensors)
    return wide and checkpoint.quantization is None and bool({"model_type", "architectures"} & (checkpoint.config or {}).keys())


def _kept(oracle: LoadingOracle | None, notes: list[Note]) -> Collection[str]:
    """Return the tensors that transformers keeps in fp32. notes: receives why it cannot tell."""
    try:
        loading = LoadReport() if oracle is None else oracle.ask()
    except MantissaError as error:
        loading = LoadReport(refused=str(error))
    if loading.refused:
        notes.append(WORDS.note("not-asked", why=loading.refused))
    return kept_in_fp32(loading)


def _narrow(planned: Planned, chunk: Chunk) -> NDArray[Any]:
    narrow = narrowed_exactly(chunk.codes, cast(Narrow, planned.to))
    if narrow is None:
        raise InvalidCheckpoint(f"{quoted(planned.name)} has changed since it was first read. Nothing was kept.")
    return narrow


def _no_gain(plan: list[Planned], to: ShrinkTo) -> Note:
    wide = sum(planned.tensor.dtype == "F32" for planned in plan)
    formats = "bf16 and fp16" if to == "auto" else to
    return WORDS.note("needed", tensors=wide, formats=formats) if wide else WORDS.note("narrow")
