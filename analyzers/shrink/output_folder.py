"""Writes the folder of `shrink`: laid out, filled and read back; it gets its final name only when all of it is verified."""

import hashlib
import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from analyzers.checkpoints import (
    Access,
    Checkpoint,
    Chunk,
    Span,
    Tensor,
    is_index,
    is_weights,
    open_checkpoint,
    quoted,
    read_header,
    read_range,
    stream,
)
from analyzers.checkpoints.repository import read_file
from analyzers.core import limits
from analyzers.core.atomic_files import replacing
from analyzers.core.errors import InvalidCheckpoint, InvalidRequest, ModelTooLarge, UnsupportedWeights
from analyzers.core.formatting import size
from analyzers.core.request import Progress
from analyzers.numerics.narrowing import NARROW_DTYPES, Narrow, narrowed
from analyzers.shrink.config_dtype import holding_dtype, narrowed_config
from analyzers.shrink.output_files import indexed, indexes, lay_out
from analyzers.shrink.plan import Planned, names_in_files


class Folder:
    """The contents of the folder to write, all known before anything is written.

    small: configurations and indexes to write, path -> text; copied: the other files of the checkpoint, path -> bytes, none if
    ``changed_only``; unread: weight files among them; config_dtype: the dtype that config.json states afterwards; skipped: indexes of
    replaced weight files; written: files that differ from the checkpoint's; replaced: weight files and indexes of the checkpoint that are
    not in the folder. read: the checkpoint whose tensors are planned; base: the one whose files are laid out, if it is another.
    """

    def __init__(self, read: Checkpoint, plan: list[Planned], changed_only: bool = False, base: Checkpoint | None = None) -> None:
        checkpoint = base or read
        self._read, self._checkpoint, self._plan = read, checkpoint, plan
        self._files = lay_out(checkpoint, plan)
        self.config_dtype: str | None = None
        self._small = indexes(checkpoint, self._files) | self._configs()
        sizes = checkpoint.repository.files
        weights = {file.path for file in checkpoint.files}
        self.written = sorted({*(file.path for file in self._files), *self._small})
        gone = weights - set(self.written)
        others = [path for path in sizes if path not in weights and path not in self._small]
        self.skipped = [path for path in others if is_index(path) and gone & indexed(checkpoint, path)]
        unchanged = {path: sizes[path] for path in others if path not in self.skipped}
        self._copied = {} if changed_only else unchanged
        self.unread = [path for path in self._copied if is_weights(path)]
        self.replaced = sorted(gone | set(self.skipped))
        taken = next((file.path for file in self._files if file.path in unchanged), None)
        if taken:
            raise UnsupportedWeights(f"{quoted(taken, 200)} would be replaced, and was not read: move it out of the folder first.")

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in self._files) + sum(map(len, self._small.values())) + sum(self._copied.values())

    def write(self, target: Path) -> Generator[Progress, None, None]:
        """Write the folder, read it back and compare, then rename it to ``target``, which must not exist.

        An incomplete folder never has that name. Raises ModelTooLarge if the disk is too small, InvalidCheckpoint if the written values
        differ from those read, InvalidRequest if the folder cannot be written.
        """
        try:
            with replacing(target) as folder:
                free = shutil.disk_usage(target.parent).free
                if free < self.nbytes:
                    raise ModelTooLarge(
                        f"The result has {size(self.nbytes)}, and the disk of {quoted(str(target.parent), 200)} has room for {size(free)}: "
                        "make room, or name a folder on another disk."
                    )
                folder.mkdir()
                digests = yield from self._write_weights(folder)
                self._write_others(folder)
                yield from self._compare(folder, digests)
                if os.path.lexists(target):
                    raise InvalidRequest(f"{quoted(str(target), 200)} was made by somebody else in the meantime: name another folder.")
        except OSError as error:
            reason = error.strerror or "the system refuses it"
            raise InvalidRequest(f"{quoted(str(target), 200)} cannot be written: {reason}. Nothing was kept.") from None

    def _write_weights(self, folder: Path) -> Generator[Progress, None, dict[tuple[str, int], bytes]]:
        """Stream every tensor into its file; return the SHA-256 of each span whose digest was not known."""
        with ExitStack() as opened:
            places: dict[str, tuple[int, int, Planned]] = {}
            for file in self._files:
                (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
                out = opened.enter_context((folder / file.path).open("wb"))
                out.write(file.header)
                out.flush()
                out.truncate(file.nbytes)
                for planned in file.tensors:
                    places[planned.tensor.name] = out.fileno(), file.starts[planned.name], planned

            def work(span: Span, chunks: Iterator[Chunk]) -> bytes:
                descriptor, start, planned = places[span.tensor.name]
                digest = hashlib.sha256()
                for chunk in chunks:
                    data, at = chunk.codes, start + chunk.start
                    if planned.narrows:
                        data = self._convert(data, planned)
                        at = start + data.itemsize * chunk.start
                    if not planned.digests:
                        digest.update(data.data)
                    _write_all(descriptor, data.data.cast("B"), at)
                return digest.digest()

            spans = [span for file in self._files for planned in file.tensors for span in planned.spans()]
            spans.sort(key=lambda span: (span.tensor.file, span.tensor.offset, span.start))
            total, digests = sum(span.nbytes for span in spans), {}
            with closing(stream([self._read], spans, work)) as steps:  # type: ignore[type-var]
                for step in steps:
                    if step.span is not None and step.result is not None:
                        digests[step.span.tensor.name, step.span.start] = step.result
                    yield Progress(done=step.bytes_read, total=total, unit="bytes", note="writing")
        return digests

    def _convert(self, codes: NDArray[Any], planned: Planned) -> NDArray[Any]:
        return narrowed(codes, _narrow(planned))

    def _write_others(self, folder: Path) -> None:
        for path, text in self._small.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(text)
        for path, nbytes in self._copied.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            file = self._checkpoint.repository.open(path)
            with closing(file), (folder / path).open("wb") as out:
                for at in range(0, nbytes, limits.CHUNK_BYTES):
                    out.write(read_range(file, at, min(limits.CHUNK_BYTES, nbytes - at)))

    def _compare(self, folder: Path, digests: dict[tuple[str, int], bytes]) -> Generator[Progress, None, None]:
        """Read the new files like any checkpoint, and compare digests.

        Narrowed values are compared with those that preserved every bit of the source, if they are known.
        """
        with open_checkpoint(str(folder), Access(local=True)) as written:
            names = names_in_files(written)
            found = {(written.files[tensor.file].path, names[tensor.name]): tensor for tensor in written.tensors}
            stored = {
                (file.path, each.name): each
                for file in written.files
                if file.path not in self._copied
                for each in read_header(file).tensors
            }
            expected = {(file.path, planned.name): planned for file in self._files for planned in file.tensors}
            if stored.keys() != expected.keys():
                raise InvalidCheckpoint("The written files do not hold the tensors of the checkpoint. Nothing was kept.")
            sources: dict[tuple[str, int], tuple[Planned, bytes]] = {}
            spans = []
            for place, planned in expected.items():
                if (stored[place].dtype, stored[place].shape) != (planned.to, planned.tensor.shape):
                    raise _differs(planned)
                tensor = found[place]
                for number, span in enumerate(planned.spans()):
                    own = planned.digests[number] if planned.digests else digests[planned.tensor.name, span.start]
                    sources[tensor.name, span.start] = planned, own
                    spans.append(Span.of(_as_spans(tensor, planned), span.start, span.count))

            def work(span: Span, chunks: Iterator[Chunk]) -> bool:
                _, own = sources[span.tensor.name, span.start]
                digest = hashlib.sha256()
                for chunk in chunks:
                    digest.update(chunk.codes.data)
                return digest.digest() == own

            total = sum(span.nbytes for span in spans)
            with closing(stream([written], spans, work)) as steps:  # type: ignore[type-var]
                for step in steps:
                    if step.span is not None and not step.result:
                        raise _differs(sources[step.span.tensor.name, step.span.start][0])
                    yield Progress(done=step.bytes_read, total=total, unit="bytes", note="reading back")

    def _configs(self) -> dict[str, bytes]:
        """Return every config.json above tensors that change their dtype. Buffers are ignored: loaders ignore or recompute most of them."""
        found = {}
        sizes = self._checkpoint.repository.files
        for path in sorted((path for path in sizes if path.rpartition("/")[2] == "config.json"), key=lambda path: path.count("/")):
            folder = path.removesuffix("config.json")
            below = [planned for file in self._files if file.path.startswith(folder) for planned in file.tensors]
            dtype = holding_dtype(planned.to or "" for planned in below if not planned.tensor.buffer)
            if dtype and any(planned.narrows for planned in below) and 0 < sizes[path] <= limits.CONFIG_BYTES:
                written = narrowed_config(read_file(self._checkpoint.repository, path), dtype)
                if written is not None:
                    found[path] = written[0]
                    self.config_dtype = self.config_dtype or written[1]
        return found


def _narrow(planned: Planned) -> Narrow:
    return next(each for each in NARROW_DTYPES if each == planned.to)


def _as_spans(tensor: Tensor, planned: Planned) -> Tensor:
    """Return the written tensor in the form that the spans of ``planned`` cover."""
    return tensor if planned.narrows else replace(tensor, dtype="U8", shape=(tensor.nbytes,))


def _differs(planned: Planned) -> InvalidCheckpoint:
    return InvalidCheckpoint(f"{quoted(planned.name)} reads back differently from what the checkpoint holds. Nothing was kept.")


def _write_all(descriptor: int, data: memoryview, at: int) -> None:
    while data:
        done = os.pwrite(descriptor, data, at)
        data, at = data[done:], at + done
