"""Writes a new folder: laid out, filled and read back; it gets its name only when all of it is verified. Nothing is overwritten."""

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from analyzers.checkpoints import Checkpoint, Chunk, LocalRepository, Span, is_index, is_weights, quoted, read_header, stream
from analyzers.checkpoints.local import LocalFile
from analyzers.checkpoints.reading.worker_threads import work_through
from analyzers.checkpoints.repository import copy_range
from analyzers.core import limits
from analyzers.core.atomic_files import replacing
from analyzers.core.errors import InvalidCheckpoint, InvalidRequest, ModelTooLarge, UnsupportedWeights
from analyzers.core.formatting import size
from analyzers.core.request import Progress
from analyzers.write.files import configs, indexed, indexes, lay_out
from analyzers.write.plan import Planned

# Returns the patterns to store of a chunk of a tensor whose values are converted or compared.
Convert = Callable[[Planned, Chunk], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of a tensor as they were written: where, how many, and their SHA-256."""

    name: str
    path: str
    start: int
    nbytes: int
    digest: bytes


class Folder:
    """The contents of the folder to write, all known before anything is written.

    written: files that differ from the checkpoint's; replaced: weight files and indexes of the checkpoint that are not in the folder;
    unread: weight files that are copied; config_dtype: the dtype that config.json states afterwards.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        plan: Sequence[Planned],
        *,
        changed_only: bool = False,
        left_out: Collection[str] = (),
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        """Lay out ``plan`` in place of the files of ``checkpoint``, whose other files are copied, unless ``changed_only``.

        left_out: files that are not copied; changes: see `files.configs`.
        """
        self._checkpoint, self._files = checkpoint, lay_out(checkpoint, plan)
        stated = configs(checkpoint, self._files, changes)
        self.config_dtype = next((dtype for _, dtype in stated.values()), None)
        texts = {path: json.dumps(config, indent=2).encode() + b"\n" for path, (config, _) in stated.items()}
        self._small = indexes(checkpoint, self._files) | texts
        sizes, weights = checkpoint.repository.files, {file.path for file in checkpoint.files}
        self.written = sorted({*(file.path for file in self._files), *self._small})
        gone = weights - set(self.written)
        others = [path for path in sizes if path not in weights and path not in self._small and path not in left_out]
        old_indexes = {path for path in others if is_index(path) and gone & indexed(checkpoint, path)}
        unchanged = {path: sizes[path] for path in others if path not in old_indexes}
        self._copied = {} if changed_only else unchanged
        self.unread = [path for path in self._copied if is_weights(path)]
        self.replaced = sorted(gone | old_indexes)
        taken = next((file.path for file in self._files if file.path in unchanged), None)
        if taken:
            raise UnsupportedWeights(f"{quoted(taken, 200)} would be replaced, and was not read: move it out of the folder first.")

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in self._files) + sum(map(len, self._small.values())) + sum(self._copied.values())

    def write(self, target: Path, read: Sequence[Checkpoint], convert: Convert) -> Generator[Progress, None, None]:
        """Write the folder, read it back and compare, then rename it to ``target``, which must not exist.

        read: the checkpoints of the sides of each planned tensor. An incomplete folder never has the name. Raises ModelTooLarge if the disk
        is too small, InvalidCheckpoint if what was written reads back differently, InvalidRequest if the folder cannot be written.
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
                pieces = yield from self._write_weights(folder, read, convert)
                self._write_others(folder)
                yield from self._compare(folder, pieces)
                if os.path.lexists(target):
                    raise InvalidRequest(f"{quoted(str(target), 200)} was made by somebody else in the meantime: name another folder.")
        except OSError as error:
            reason = error.strerror or "the system refuses it"
            raise InvalidRequest(f"{quoted(str(target), 200)} cannot be written: {reason}. Nothing was kept.") from None

    def _write_weights(self, folder: Path, read: Sequence[Checkpoint], convert: Convert) -> Generator[Progress, None, list[_Piece]]:
        """Stream every tensor into its file; return what was written."""
        with ExitStack() as opened:
            places: dict[str, tuple[Planned, str, int, int]] = {}
            for file in self._files:
                (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
                out = opened.enter_context((folder / file.path).open("wb"))
                out.write(file.header)
                out.flush()
                out.truncate(file.nbytes)
                for planned in file.tensors:
                    places[planned.tensor.name] = planned, file.path, out.fileno(), file.starts[planned.name]

            def work(span: Span, chunks: Iterator[Chunk]) -> _Piece:
                planned, path, descriptor, start = places[span.tensor.name]
                digest, nbytes, begin = hashlib.sha256(), 0, start
                for chunk in chunks:
                    data = convert(planned, chunk) if planned.narrows or planned.changed else chunk.codes
                    if nbytes == 0:
                        begin = start + chunk.start * data.itemsize
                    digest.update(data.data)
                    _write_all(descriptor, data.data.cast("B"), begin + nbytes)
                    nbytes += data.nbytes
                return _Piece(planned.name, path, begin, nbytes, digest.digest())

            spans = [span for file in self._files for planned in file.tensors for span in planned.spans(len(read))]
            spans.sort(key=lambda span: (span.tensor.file, span.tensor.offset, span.start))
            total, pieces = sum(span.nbytes for span in spans), list[_Piece]()
            with closing(stream(read, spans, work)) as steps:  # type: ignore[type-var]
                for step in steps:
                    if step.result is not None:
                        pieces.append(step.result)
                    yield Progress(done=step.bytes_read, total=total, unit="bytes", note="writing")
        return pieces

    def _write_others(self, folder: Path) -> None:
        for path, text in self._small.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(text)
        for path, nbytes in self._copied.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            file = self._checkpoint.repository.open(path)
            with (folder / path).open("wb") as out:
                for _ in copy_range(file, 0, nbytes, out):
                    pass

    def _compare(self, folder: Path, pieces: Sequence[_Piece]) -> Generator[Progress, None, None]:
        """Read the headers of the new files as those of any checkpoint, and every byte of their tensors."""
        for file in self._files:
            written = LocalFile(folder / file.path, file.path, file.nbytes)
            found = {each.name: (each.dtype, each.shape, each.start) for each in read_header(written).tensors}
            if found != {each.name: (each.to, each.tensor.shape, file.starts[each.name]) for each in file.tensors}:
                raise InvalidCheckpoint("The written files do not hold the tensors of the checkpoint. Nothing was kept.")

        def reader() -> Callable[[_Piece], bool]:
            return lambda piece: _digest(folder / piece.path, piece.start, piece.nbytes) == piece.digest

        total, done = sum(piece.nbytes for piece in pieces), 0
        with closing(work_through(pieces, limits.cores(), reader, threading.Event())) as results:
            for item in results:
                if item is not None:
                    piece, same = item
                    if not same:
                        raise InvalidCheckpoint(f"{quoted(piece.name)} reads back differently from what was written. Nothing was kept.")
                    done += piece.nbytes
                yield Progress(done=done, total=total, unit="bytes", note="reading back")


def _digest(path: Path, start: int, nbytes: int) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(start)
        for at in range(0, nbytes, limits.CHUNK_BYTES):
            digest.update(file.read(min(limits.CHUNK_BYTES, nbytes - at)))
    return digest.digest()


def _write_all(descriptor: int, data: memoryview, at: int) -> None:
    while data:
        done = os.pwrite(descriptor, data, at)
        data, at = data[done:], at + done


def new_folder(out: str) -> Path:
    """Return the absolute path of the folder to write. Raises InvalidRequest unless it is new and its parent is a folder."""
    if not out or "\0" in out:
        raise InvalidRequest("--out is empty or no path: name the folder to write.")
    target = Path(os.path.abspath(out))  # noqa: PTH100 - a link in its place must be seen, not followed
    try:
        if os.path.lexists(target):
            raise InvalidRequest(f"{quoted(out, 200)} exists already, and nothing is overwritten: name a new folder.")
        if not target.parent.is_dir():
            raise InvalidRequest(f"{quoted(str(target.parent), 200)} is not a folder: --out creates its folder inside an existing one.")
    except OSError as error:
        raise InvalidRequest(f"{quoted(out, 200)} cannot be written: {error.strerror or 'the system refuses it'}.") from None
    return target


def check_outside(target: Path, checkpoint: Checkpoint) -> None:
    """Raise InvalidRequest if the new folder would be inside the checkpoint's: the next run would read it as a part of that."""
    repository = checkpoint.repository
    if isinstance(repository, LocalRepository) and not repository.single_file:
        source = Path(repository.folder).resolve()
        if source in (target.parent.resolve(), *target.parent.resolve().parents):
            raise InvalidRequest(f"{quoted(str(target), 200)} is inside the checkpoint: name a folder outside it.")
