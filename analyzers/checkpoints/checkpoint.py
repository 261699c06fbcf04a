"""An open checkpoint: its files and the tensors that their headers describe."""

import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, Self

from analyzers.checkpoints.file_tensors import count_once, file_tensors
from analyzers.checkpoints.formats.gguf_header import read_gguf
from analyzers.checkpoints.formats.pickles.torch_file import read_pickled
from analyzers.checkpoints.formats.safetensors_header import Header, Omitted, read_header
from analyzers.checkpoints.local import LocalRepository, sample_folder
from analyzers.checkpoints.quantization.description import quantization
from analyzers.checkpoints.quantization.pairing import decode_on_reading
from analyzers.checkpoints.reference import parse_reference, quoted
from analyzers.checkpoints.repository import Access, RangeFile, Repository, read_json
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.adapters import is_adapter
from analyzers.checkpoints.weight_files.file_names import ENDINGS, GGUF, SAFETENSORS
from analyzers.checkpoints.weight_files.selection import WeightFiles, WeightSet, select_weights
from analyzers.checkpoints.words import WORDS
from analyzers.core import limits
from analyzers.core.coverage import NotRead
from analyzers.core.errors import CheckpointError, CheckpointNotFound, HubUnreachable, LimitExceeded, NoWeights
from analyzers.core.notes import Note
from analyzers.core.report import CheckpointFacts
from analyzers.core.terminal import printable, some_files
from analyzers.core.untrusted_json import InvalidJson

_DIGITS = re.compile("[0-9]+")
_NUMBERS = 16  # of a name that are compared numerically; real names have at most 4

# Storages in pickled files whose positions are verified, in all files together: over a network each is a request.
_PLACES_CHECKED, _CHECKED_LOCALLY = 16, 4_096


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint at one commit. Close it, or use it in a ``with`` statement.

    ref, commit, public: see `Repository`; files: the open weight files; tensors: sorted by name with embedded numbers compared
    numerically, across files and formats, each tied tensor once; config: the unchecked contents of config.json, None if it is
    missing or unreadable; quantization: the quantization method, None for unquantized weights (`description.quantization`);
    notes: remarks for the reader; parallel_reads: the number of concurrent reads the source benefits from; aliases: tensors of the same
    memory as one of ``tensors``, which counts for them; not_read: files that may hold weights and were not read;
    omitted: tensors of ``files`` that are not read;
    replaced: tensors that a later shard holds under the same name -> the one there, which transformers loads; refused:
    path of a file that transformers does not load -> why (`Header`); pickled: paths of the files that are pickles by their content;
    misfits: names of quantized codes that are not decoded, because their scales or other parts do not fit.
    """

    ref: str
    commit: str
    public: bool
    files: tuple[RangeFile, ...]
    tensors: tuple[Tensor, ...]
    config: dict[str, Any] | None
    quantization: str | None
    notes: tuple[Note, ...]
    parallel_reads: int
    repository: Repository
    aliases: tuple[Tensor, ...] = ()
    not_read: tuple[NotRead, ...] = ()
    omitted: tuple[Omitted, ...] = ()
    replaced: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    pickled: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()

    @property
    def parts(self) -> "tuple[tuple[Checkpoint, float], ...]":
        """The stored checkpoints that this one consists of, with their weights: itself, or a base and its adapters."""
        return ((self, 1.0),)

    @property
    def parameters(self) -> int:
        """Number of elements that are neither buffers nor parts of quantized tensors. Integers that are not decoded count as stored."""
        return sum(tensor.elements for tensor in self.tensors if not tensor.buffer and not tensor.holds_scales)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored, including buffers."""
        return sum(tensor.on_disk.nbytes for tensor in self.tensors)

    def facts(self) -> CheckpointFacts:
        """Return the facts that reports state about the checkpoint."""
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

    def close(self) -> None:
        """Close the repository. Idempotent; no read may be in progress."""
        self.repository.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_stored(
    text: str,
    access: Access,
    subfolder: str | None = None,
    on_repository: Callable[[Repository], None] | None = None,
    *,
    weights: bool = True,
    adapter: bool = False,
) -> Checkpoint:
    """Open the checkpoint that ``text`` refers to, as it is stored, and read the header of each weight file.

    text: a reference (`reference.parse_reference`); access: what the caller may read; subfolder: read only this folder;
    on_repository: called with the repository before headers are read, so that another thread can cancel by closing it;
    weights: False also accepts a repository that has a config.json but no weights; adapter: read only the adapter if its files are next
    to those of a model.
    Raises InvalidReference, the CheckpointError family, the HubError family and LimitExceeded; closes everything first.
    """
    repository, origin = _open_repository(text, access)
    try:
        if on_repository is not None:
            on_repository(repository)
        checkpoint = _open(repository, subfolder, weights, adapter)
    except BaseException as error:
        repository.close()
        if origin and isinstance(error, CheckpointError):
            raise type(error)(f"{error} {origin}") from None
        raise
    return replace(checkpoint, notes=(origin, *checkpoint.notes)) if origin else checkpoint


def _open_repository(text: str, access: Access) -> tuple[Repository, Note | None]:
    """Open the repository of a reference, with a note if the web page would resolve the reference differently.

    Raises InvalidReference, CheckpointNotFound, AccessDenied, LimitExceeded and the HubError family.
    """
    reference = parse_reference(text, access.local)
    if reference.kind == "local":
        bare = not reference.name.startswith(("./", "/"))
        return LocalRepository(reference.name), WORDS.note("local-path", path=printable(reference.name)) if bare else None
    if reference.kind == "memory":
        if reference.name not in access.memory:
            raise CheckpointNotFound(
                f"{quoted(reference.name)} was a model in the memory of the program that made the report: pass it again."
            )
        return access.memory[reference.name], None
    if reference.kind == "sample":
        return LocalRepository(sample_folder(reference.name), f"sample:{reference.name}"), None
    # Local import: the Hub's client takes 0.2 s to import, and samples and local files do not need it.
    from analyzers.checkpoints.hub.hub_repository import cached_snapshot, open_hub

    try:
        return open_hub(reference.name, reference.revision, access), None
    except HubUnreachable as error:
        if not access.local:
            raise
        folder = cached_snapshot(reference.name, reference.revision)
        if folder is None:
            raise HubUnreachable(f"{error} This machine's Hub cache does not have {quoted(text)}.") from None
        repository = LocalRepository(folder)
        repository.ref, repository.commit = reference.name, folder.name
        return repository, WORDS.note("cached", model=reference.name)


def _open(repository: Repository, subfolder: str | None, needed: bool, adapter: bool) -> Checkpoint:
    weights = _weight_files(repository, subfolder, needed, adapter)
    files, headers = _read_headers(repository, weights.paths)
    notes = [*weights.notes]
    every, replaced = file_tensors(weights, headers, notes)
    stored, aliases = count_once(every)
    if not stored and weights.paths:
        others = f" Not read: {some_files([each.path for each in weights.not_read])}." if weights.not_read else ""
        raise NoWeights(f"The weight files of this checkpoint hold no tensors.{others}")
    config = _read_config(repository, weights.sets[0].folder if weights.sets else "", notes)
    if is_adapter(weights.paths, stored):
        notes.append(WORDS.note("adapter"))
    tensors, misfits = decode_on_reading(stored, files, config, repository.parallel_reads)
    if misfits:
        notes.append(WORDS.note("misfit-scales", tensors=len(misfits), name=misfits[0]))
    return Checkpoint(
        ref=repository.ref,
        commit=repository.commit,
        public=repository.public,
        files=files,
        tensors=tuple(by_name(tensors)),
        config=config,
        quantization=quantization(stored, config),
        notes=tuple(notes),
        parallel_reads=repository.parallel_reads,
        repository=repository,
        aliases=aliases,
        not_read=weights.not_read,
        omitted=tuple(chain.from_iterable(header.omitted for header in headers)),
        replaced=replaced,
        refused={file.path: header.refused for file, header in zip(files, headers, strict=True) if header.refused},
        pickled=tuple(file.path for file, header in zip(files, headers, strict=True) if header.pickled),
        misfits=misfits,
    )


def _weight_files(repository: Repository, subfolder: str | None, needed: bool, adapter: bool) -> WeightFiles:
    """Select the weight files of a repository; none if it has only a config.json and they are not ``needed``."""
    if isinstance(repository, LocalRepository) and repository.single_file and repository.ref.endswith(ENDINGS):
        return WeightFiles((WeightSet("", ((next(iter(repository.files)),),)),))
    own = {path: size for path, size in repository.files.items() if adapter and path.startswith("adapter_model.")}
    try:
        return select_weights(own or repository.files, partial(read_json, repository), subfolder)
    except NoWeights:
        if needed or "config.json" not in repository.files:
            raise
        return WeightFiles(())


def _read_headers(repository: Repository, paths: tuple[str, ...]) -> tuple[tuple[RangeFile, ...], tuple[Header, ...]]:
    places = _CHECKED_LOCALLY if isinstance(repository, LocalRepository) else _PLACES_CHECKED
    checks = max(2, places // max(1, len(paths)))

    def read(path: str) -> tuple[RangeFile, Header]:
        file = repository.open(path)
        if path.endswith(SAFETENSORS):
            return file, read_header(file)
        return file, read_gguf(file) if path.endswith(GGUF) else read_pickled(file, checks)

    files, headers, tensors = [], [], 0
    pool = ThreadPoolExecutor(max(1, min(repository.parallel_reads, len(paths))), thread_name_prefix="header")
    try:
        for file, header in pool.map(read, paths):
            files.append(file)
            headers.append(header)
            tensors += len(header.tensors)
            if tensors > limits.TENSORS:
                raise LimitExceeded(f"The checkpoint has more than {limits.TENSORS:,} tensors.")
    except BaseException:
        repository.close()  # wakes reads that wait for the Hub, so that an interrupt does not wait with them
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return tuple(files), tuple(headers)


def by_name(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Sort by name, with layers.2 before layers.10: in sort keys, the number of digits precedes each number."""

    def numbered(match: re.Match[str]) -> str:
        digits = match[0].lstrip("0")
        return chr(ord("0") + len(digits)) + digits

    return sorted(tensors, key=lambda tensor: _DIGITS.sub(numbered, tensor.name, count=_NUMBERS) + "\0" + tensor.name)


def _read_config(repository: Repository, folder: str, notes: list[Note]) -> dict[str, Any] | None:
    """Read the config.json of ``folder``, else of the top folder; None with a note if it is unreadable."""
    path = next((path for path in (f"{folder}/config.json".lstrip("/"), "config.json") if path in repository.files), None)
    if path is None:
        return None
    try:
        config = read_json(repository, path, limits.CONFIG_BYTES)
    except InvalidJson:
        config = None
    if isinstance(config, dict):
        return config
    notes.append(WORDS.note("unreadable-json", file=path))
    return None
