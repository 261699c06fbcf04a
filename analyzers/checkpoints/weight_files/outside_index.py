"""Reads files next to a set of shards that the index does not name, if they hold tensors that the set lacks."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from analyzers import limits
from analyzers.checkpoints.formats.safetensors_header import Header
from analyzers.checkpoints.repository import RangeFile, Repository
from analyzers.checkpoints.weight_files.file_names import file_name, stem
from analyzers.checkpoints.weight_files.not_read import notes_on
from analyzers.checkpoints.weight_files.selection import SkippedFile, WeightFiles, WeightSet
from analyzers.errors import CheckpointError, LimitExceeded
from analyzers.terminal import printable, some_files

_MOST = 100  # most files opened: each is a request, and real checkpoints have one or two
_UNINDEXED = "no index names it"


@dataclass(frozen=True, slots=True)
class WithOutside:
    """Selected weights, including files that the index does not name. paths: these files; their tensors' names begin with the file."""

    weights: WeightFiles
    files: tuple[RangeFile, ...]
    headers: tuple[Header, ...]
    paths: tuple[str, ...] = ()


def add_outside(
    repository: Repository,
    weights: WeightFiles,
    files: tuple[RangeFile, ...],
    headers: tuple[Header, ...],
    read: Callable[[RangeFile], Header],
) -> WithOutside:
    """Add the files outside an index whose tensor names are missing from the index's set; list the others as not read.

    files, headers: those of ``weights.paths``, in the same order; read: reads the header of a file.
    A damaged file is listed with its fault. Raises the errors of the Hub, and LimitExceeded for too many tensors; on any error the
    files that this function opened are closed.
    """
    if not weights.outside:
        return WithOutside(weights, files, headers)
    held = dict(zip(weights.paths, headers, strict=True))
    count = sum(len(header.tensors) for header in headers)
    sets, opened, described, skipped = [], list[RangeFile](), list[Header](), list[SkippedFile]()
    with ExitStack() as stack:
        for chosen in weights.sets:
            known = {tensor.name for group in chosen.groups for path in group for tensor in held[path].tensors} if chosen.outside else set()
            for path in chosen.outside:
                file, header, fault = _read(repository, path, read) if len(opened) + len(skipped) < _MOST else (None, None, _UNINDEXED)
                if file is None or header is None:
                    skipped.append(SkippedFile(printable(path), fault))
                    continue
                stack.callback(file.close)
                names = {tensor.name for tensor in header.tensors}
                if names & known or not names:
                    why = "no index names it, and it holds tensors of the same names as the files that one names, not compared"
                    skipped.append(SkippedFile(printable(path), why, alternative=names <= known))
                    file.close()
                    continue
                count += len(header.tensors)
                if count > limits.TENSORS:
                    raise LimitExceeded(f"The checkpoint has more than {limits.TENSORS:,} tensors.")
                opened.append(file)
                described.append(header)
                sets.append(WeightSet(chosen.folder, ((path,),), prefix=f"{chosen.prefix}{stem(file_name(path))}/"))
        stack.pop_all()
    paths = tuple(file.path for file in opened)
    every = tuple(sorted((*weights.not_read, *skipped), key=lambda each: each.path))
    notes = (*weights.notes, *_notes(paths, skipped))
    return WithOutside(
        replace(weights, sets=(*weights.sets, *sets), notes=notes, not_read=every), (*files, *opened), (*headers, *described), paths
    )


def _read(repository: Repository, path: str, read: Callable[[RangeFile], Header]) -> tuple[RangeFile | None, Header | None, str]:
    """Open a file and read its header; if that fails, return the reason."""
    file = repository.open(path)
    try:
        return file, read(file), ""
    except (CheckpointError, LimitExceeded) as error:
        file.close()
        return None, None, f"{_UNINDEXED}, and it cannot be read: {str(error).rstrip('.')}"
    except BaseException:
        file.close()
        raise


def _notes(paths: tuple[str, ...], skipped: list[SkippedFile]) -> list[str]:
    notes = []
    if paths:
        them, they = ("them", "they were") if len(paths) > 1 else ("it", "it was")
        notes.append(f"The index does not name {some_files(paths)}: transformers does not load {them}; {they} read all the same.")
    return [*notes, *notes_on(skipped, gguf=False)]
