"""An open checkpoint: its files and the tensors that their headers describe."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from analyzers import limits
from analyzers.checkpoints.adapters import adapter_note, is_adapter
from analyzers.checkpoints.content import is_recognized, read_any_header
from analyzers.checkpoints.header import Header, Omitted
from analyzers.checkpoints.layout import SAFETENSORS, SkippedFile, WeightFiles, WeightSet, is_weights, select_weights, single_file
from analyzers.checkpoints.local import LocalFile, LocalRepository
from analyzers.checkpoints.names import is_buffer, layer, role
from analyzers.checkpoints.opening import open_repository
from analyzers.checkpoints.outside_index import add_outside
from analyzers.checkpoints.quantization import quantization
from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.repository import Access, RangeFile, Repository, read_range
from analyzers.checkpoints.scales import pair_scales
from analyzers.checkpoints.tensor import DTYPE_BITS, Tensor
from analyzers.errors import CheckpointError, InvalidCheckpoint, InvalidReference, LimitExceeded, NoWeights
from analyzers.terminal import plural

if TYPE_CHECKING:
    from analyzers.base import CheckpointFacts

_NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.)")
_DIGITS = re.compile("[0-9]+")

# Storages of pickled files whose positions are verified when the checkpoint is read over a network.
_PLACES_CHECKED = 16

# Tied tensors listed by name in the notes.
_NAMED_TIES = 8


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint at one commit. Close it, or use it in a ``with`` statement.

    ref, commit, public: see `Repository`; files: the open weight files; tensors: sorted by name with embedded numbers compared
    numerically, across files and formats, each tied tensor once; config: the unchecked contents of config.json, None if it is
    missing or unreadable; quantization: the quantization method, None for unquantized weights (`names.quantization`);
    notes: remarks for the reader; parallel_reads: the number of concurrent reads the source benefits from; aliases: tensors of the same
    memory as one of ``tensors``, which counts for them; not_read: files that may hold weights and were not read, with the reason;
    omitted: tensors of ``files`` that are not read; outside_index: files that were read and that the index of their folder does not name.
    """

    ref: str
    commit: str
    public: bool
    files: tuple[RangeFile, ...]
    tensors: tuple[Tensor, ...]
    config: dict[str, Any] | None
    quantization: str | None
    notes: tuple[str, ...]
    parallel_reads: int
    repository: Repository
    aliases: tuple[Tensor, ...] = ()
    not_read: tuple[SkippedFile, ...] = ()
    omitted: tuple[Omitted, ...] = ()
    outside_index: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """Number of elements that are neither buffers nor scales. Integer-quantized weights count as stored, not as model parameters."""
        return sum(tensor.elements for tensor in self.tensors if not tensor.buffer and not tensor.holds_scales)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, including buffers."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def facts(self) -> "CheckpointFacts":
        """The facts that reports state about the checkpoint."""
        from analyzers.base import CheckpointFacts  # local import: opening a checkpoint must not load pydantic

        return CheckpointFacts(
            ref=self.ref,
            commit=self.commit,
            parameters=self.parameters,
            bytes=self.nbytes,
            files=len(self.files),
            tensors=len(self.tensors),
            public=self.public,
            quantization=self.quantization,
        )

    def confirm(self) -> None:
        """Raise InvalidCheckpoint if a local file has changed since it was opened. Hub files are checked on every read."""
        for file in self.files:
            if isinstance(file, LocalFile):
                file.confirm()

    def close(self) -> None:
        """Close every file and the repository. Idempotent; no read may be in progress."""
        for file in self.files:
            file.close()
        self.repository.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_checkpoint(
    text: str,
    access: Access,
    subfolder: str | None = None,
    on_repository: Callable[[Repository], None] | None = None,
    *,
    weights: bool = True,
) -> Checkpoint:
    """Open the checkpoint that ``text`` refers to and read the header of each weight file.

    text: a reference (`reference.parse_reference`); access: what the caller may read; subfolder: read only this folder;
    on_repository: called with the repository before headers are read, so that another thread can cancel by closing it;
    weights: False also accepts a repository that has a config.json but no weights.
    Raises InvalidReference, the CheckpointError family, the HubError family and LimitExceeded; closes everything first.
    """
    repository, origin = open_repository(text, access)
    try:
        if on_repository is not None:
            on_repository(repository)
        checkpoint = _open(repository, subfolder, weights)
    except BaseException as error:
        repository.close()
        if origin and isinstance(error, CheckpointError):
            raise type(error)(f"{error} {origin}") from None
        raise
    return replace(checkpoint, notes=(origin, *checkpoint.notes)) if origin else checkpoint


def _open(repository: Repository, subfolder: str | None, needed: bool) -> Checkpoint:
    if subfolder is not None and ("\\" in subfolder or not subfolder.isprintable() or ".." in subfolder.split("/")):
        raise InvalidReference(f"{quoted(subfolder)} is not a folder inside a checkpoint: give its path, with '/' between folders.")
    unopened = repository.unreadable_weights(subfolder) if isinstance(repository, LocalRepository) else ()
    unreadable = _unreadable(unopened)
    if isinstance(repository, LocalRepository) and repository.single_file and _holds_weights(repository):
        weights = single_file(repository.files)
    else:
        try:
            weights = select_weights(repository.files, lambda path: _read_small(repository, path), subfolder)
        except NoWeights as error:
            if needed or "config.json" not in repository.files:
                raise NoWeights(f"No weights can be read: {unreadable}" if unreadable else str(error)) from None
            weights = WeightFiles(())
        except InvalidCheckpoint as error:
            raise InvalidCheckpoint(f"{error} Besides, {unreadable}" if unreadable else str(error)) from None
    files, headers = _read_headers(repository, weights.paths)
    try:
        added = add_outside(repository, weights, files, headers, lambda file: _read_header(repository, file, len(files)))
        weights, files, headers = added.weights, added.files, added.headers
        notes = [*weights.notes, *([f"Not read: {unreadable}"] if unreadable and weights.paths else [])]
        stored, aliases = _once(_distinct(_tensors(weights, headers, notes), weights), notes)
        if not stored and weights.paths:
            raise NoWeights("The weight files of this checkpoint hold no tensors.")
        config = _read_config(repository, weights, "config.json", notes)
        if is_adapter(weights.paths, stored):
            notes.append(adapter_note(_read_config(repository, weights, "adapter_config.json", notes), stored))
        tensors, unfit = pair_scales(stored, config)
        return Checkpoint(
            ref=repository.ref,
            commit=repository.commit,
            public=repository.public,
            files=files,
            tensors=tuple(_by_name(tensors)),
            config=config,
            quantization=quantization(stored, config),
            notes=(*notes, *unfit),
            parallel_reads=repository.parallel_reads,
            repository=repository,
            aliases=aliases,
            not_read=(*weights.not_read, *unopened),
            omitted=tuple(chain.from_iterable(header.omitted for header in headers)),
            outside_index=added.paths,
        )
    except BaseException:
        for file in files:
            file.close()
        raise


def _holds_weights(repository: LocalRepository) -> bool:
    """Whether the single file of ``repository`` may hold weights, by its name or by its content."""
    if is_weights(repository.ref):
        return True
    file = repository.open(next(iter(repository.files)))
    try:
        return is_recognized(file)
    finally:
        file.close()


def _read_headers(repository: Repository, paths: tuple[str, ...]) -> tuple[tuple[RangeFile, ...], tuple[Header, ...]]:
    opened: list[RangeFile] = []

    def read(path: str) -> tuple[RangeFile, Header]:
        file = repository.open(path)
        opened.append(file)
        return file, _read_header(repository, file, len(paths))

    pool = ThreadPoolExecutor(max(1, min(repository.parallel_reads, len(paths))), thread_name_prefix="header")
    try:
        pairs = []
        count = 0
        for file, header in pool.map(read, paths):
            count += len(header.tensors)
            if count > limits.TENSORS:
                raise LimitExceeded(f"The checkpoint has more than {limits.TENSORS:,} tensors (MANTISSA_TENSORS).")
            pairs.append((file, header))
    except BaseException:
        repository.close()  # wakes reads that wait for the Hub, so that an interrupt does not wait with them
        pool.shutdown(cancel_futures=True)
        for file in opened:
            file.close()
        raise
    pool.shutdown()
    return tuple(file for file, _ in pairs), tuple(header for _, header in pairs)


def _read_header(repository: Repository, file: RangeFile, files: int) -> Header:
    """Read the header of one of ``files`` weight files."""
    # Over a network every check of a pickled storage is a request, so all files share a small budget.
    return read_any_header(file, None if isinstance(repository, LocalRepository) else max(2, _PLACES_CHECKED // files))


def _by_name(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Sort by name with layers.2 before layers.10: in sort keys, numbers begin with how many digits they have."""

    def numbered(match: re.Match[str]) -> str:
        digits = match[0].lstrip("0")
        return chr(ord("0") + len(digits)) + digits

    return sorted(tensors, key=lambda tensor: _DIGITS.sub(numbered, tensor.name) + "\0" + tensor.name)


def _once(tensors: Iterable[Tensor], notes: list[str]) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Keep one of several tensors that alias the same elements of a file: the first that is not a head, else the first; and the others."""
    every = list(tensors)
    if len({(tensor.file, tensor.offset) for tensor in every}) == len(every):
        return every, ()
    kept: dict[tuple[object, ...], Tensor] = {}
    others: list[tuple[Tensor, tuple[object, ...]]] = []
    for tensor in every:
        place: tuple[object, ...] = (tensor.file, tensor.offset, tensor.shape, tensor.dtype, tensor.strides)
        if not tensor.elements:
            place = (tensor.name,)
        first = kept.setdefault(place, tensor)
        if first is not tensor:
            better = first.role == "head" != tensor.role
            others.append((first if better else tensor, place))
            if better:
                kept[place] = tensor
    for tensor, place in others[:_NAMED_TIES]:
        notes.append(f"{quoted(tensor.name)} is the same memory as {quoted(kept[place].name)}: counted once.")
    if len(others) > _NAMED_TIES:
        notes.append(f"The same holds of {plural(len(others) - _NAMED_TIES, 'more tensor')}.")
    return list(kept.values()), tuple(tensor for tensor, _ in others)


def _tensors(weights: WeightFiles, headers: tuple[Header, ...], notes: list[str]) -> Iterator[Tensor]:
    """Yield every tensor, with the file added to names that collide. Raises InvalidCheckpoint if a name must not collide."""
    # Layers repeat the same names: without digits only a few dozen are distinct.
    roles: dict[str, str] = {}
    numbers = {path: number for number, path in enumerate(weights.paths)}
    for chosen in weights.sets:
        places = [[numbers[path] for path in group] for group in chosen.groups]
        apart = _collide(places, headers, weights.paths)
        if apart:
            notes.append("Several files hold tensors of the same name: names begin with the file they are from.")
        _compare_index(chosen, places, headers, weights.paths, notes)
        for place in chain.from_iterable(places):
            path = weights.paths[place]
            prefix = chosen.prefix + (path.rpartition("/")[2].rpartition(".")[0] + "/" if apart else "")
            for note in headers[place].notes:
                if note not in notes:
                    notes.append(note)
            for name, dtype, shape, start, stop, strides in headers[place].tensors:
                pattern = _NUMBER.sub("0", name)
                if pattern not in roles:
                    roles[pattern] = role(name)
                buffer = is_buffer(name, shape, dtype)
                nbytes = stop - start if strides is None else prod(shape) * DTYPE_BITS[dtype] // 8
                found = roles[pattern], layer(name)
                yield Tensor(prefix + name, dtype, shape, place, start, nbytes, *found, buffer, strides=strides)


def _distinct(tensors: Iterable[Tensor], weights: WeightFiles) -> list[Tensor]:
    """Raise InvalidCheckpoint if a tensor of one set has the name that another set's gets from its folder or file."""
    found = list(tensors)
    if len(weights.sets) > 1 and len({tensor.name for tensor in found}) < len(found):
        name = next(name for name, count in Counter(tensor.name for tensor in found).items() if count > 1)
        raise InvalidCheckpoint(f"The tensor {quoted(name)} stands in two folders or files of the checkpoint, which contradicts itself.")
    return found


def _collide(places: list[list[int]], headers: tuple[Header, ...], paths: tuple[str, ...]) -> bool:
    """Whether a name occurs in several groups. Raises InvalidCheckpoint if it occurs in several files of one group."""
    if sum(map(len, places)) == 1:  # the header's own check covers a single file
        return False
    groups: Counter[str] = Counter()
    for group in places:
        holder: dict[str, int] = {}
        for place in group:
            for tensor in headers[place].tensors:
                if tensor.name in holder:
                    both = f"{quoted(paths[holder[tensor.name]], 200)} and {quoted(paths[place], 200)}"
                    raise InvalidCheckpoint(f"The tensor {quoted(tensor.name)} stands both in {both}: the checkpoint contradicts itself.")
                holder[tensor.name] = place
        groups.update(holder.keys())
    return any(count > 1 for count in groups.values())


def _unreadable(skipped: tuple[SkippedFile, ...]) -> str:
    """A sentence about weights in a local folder that cannot be opened, naming the first one; empty if there are none."""
    if not skipped:
        return ""
    more = f" So it is with {plural(len(skipped) - 1, 'more weight file')}." if len(skipped) > 1 else ""
    return f"{quoted(skipped[0].path, 200)} {skipped[0].why}.{more}"


def _compare_index(
    chosen: WeightSet, places: list[list[int]], headers: tuple[Header, ...], paths: tuple[str, ...], notes: list[str]
) -> None:
    """Note where the index contradicts the headers. The headers are authoritative."""
    if chosen.weight_map is None:
        return
    held = {tensor.name: paths[place] for group in places for place in group for tensor in headers[place].tensors}
    wrong = [name for name, path in chosen.weight_map.items() if held.get(name) != path]
    unlisted = held.keys() - chosen.weight_map.keys()
    if wrong:
        notes.append(f"The index and the files disagree on {_named(wrong[0], len(wrong))}: the files were read.")
    if unlisted:
        notes.append(f"The index leaves out {_named(min(unlisted), len(unlisted))}: they were read from the files.")
    said, shards = chosen.total_size, [place for group in places for place in group]
    nbytes = sum(tensor.stop - tensor.start for place in shards for tensor in headers[place].tensors)
    # For pickled shards some programs count tied tensors twice.
    if said is not None and said != nbytes and all(paths[place].endswith(SAFETENSORS) for place in shards):
        notes.append(f"The index counts {said:,.16g} bytes of tensors, and the files hold {nbytes:,}: the files were read.")


def _named(first: str, count: int) -> str:
    """The first of ``count`` tensors, and how many more there are."""
    return quoted(first) + (f" and {plural(count - 1, 'more tensor')}" if count > 1 else "")


def _read_config(repository: Repository, weights: WeightFiles, name: str, notes: list[str]) -> dict[str, Any] | None:
    path = next((path for path in (f"{weights.config_folder}/{name}", name) if path.lstrip("/") in repository.files), "").lstrip("/")
    if not path:
        return None
    if repository.files[path] > limits.CONFIG_BYTES:
        notes.append(f"{path} has more than {limits.CONFIG_BYTES:,} bytes (MANTISSA_CONFIG_BYTES) and was not read.")
        return None
    try:
        config = json.loads(_read_small(repository, path))
        text = json.dumps(config, ensure_ascii=False)
        if not text.isascii():  # JSON can express lone surrogates, which cannot be encoded
            config = json.loads(text.encode(errors="replace"))
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        notes.append(f"{path} is not a JSON object and was ignored.")
        return None
    return config


def _read_small(repository: Repository, path: str) -> bytes:
    file = repository.open(path)
    try:
        return read_range(file, 0, file.size)
    finally:
        file.close()
