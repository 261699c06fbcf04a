"""Opens BASE+ADAPTER: a checkpoint like any other, whose weights are those of the base with the adapters merged in."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from analyzers.checkpoints.adapters.adapter import Adapter, read_adapter
from analyzers.checkpoints.adapters.merged_file import MergedFile, MergedTensor
from analyzers.checkpoints.adapters.updates import Changes, Update, find_changes, untied
from analyzers.checkpoints.checkpoint import Checkpoint, by_name, open_stored
from analyzers.checkpoints.local import is_local
from analyzers.checkpoints.reference import joined, parse_reference, quoted, summands
from analyzers.checkpoints.repository import Access, RangeFile, Repository
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.adapters import is_adapter
from analyzers.checkpoints.tensor_names.roles import layer, role
from analyzers.checkpoints.words import WORDS
from analyzers.core import limits
from analyzers.core.errors import MantissaError, UnsupportedWeights
from analyzers.core.notes import Note


class MergedRepository:
    """The repository of the base under the name of the merged checkpoint; closing it closes the adapters' too.

    matrices: mean bytes of A and B, which a block of a sample takes with it: over a network, as many blocks are read as their matrices
    fit into half of what a quick run reads.
    """

    def __init__(self, base: Repository, adapters: Sequence[Repository], ref: str, commit: str, public: bool, matrices: int) -> None:
        self.base, self._adapters = base, adapters
        self.ref, self.commit, self.public = ref, commit, public
        self.files: Mapping[str, int] = base.files
        # Each thread holds a matrix and what it computes with it.
        self.parallel_reads = base.parallel_reads if is_local(base) else max(1, base.parallel_reads // 5)
        fit = base.range_requests if is_local(base) else limits.DEFAULT_BUDGET_BYTES // 2 // max(1, matrices)
        self.range_requests = max(1, min(base.range_requests // 2, fit))  # a block is read from the base, and its matrices

    def open(self, path: str) -> RangeFile:
        """Open one of ``files``."""
        return self.base.open(path)

    def close(self) -> None:
        """Free connections and files. Idempotent."""
        for repository in (self.base, *self._adapters):
            repository.close()


@dataclass(frozen=True, slots=True)
class Merge:
    """How a merged checkpoint comes about. base: as it is stored; adapters: with the weight of each, and what it changes, in order."""

    base: Checkpoint
    adapters: tuple[Adapter, ...]
    weights: tuple[float, ...]
    changes: tuple[Changes, ...]

    @property
    def updates(self) -> dict[str, list[tuple[int, Update]]]:
        """The changes of each tensor, by its name in the base, with the number of the adapter."""
        found: dict[str, list[tuple[int, Update]]] = {}
        for number, changes in enumerate(self.changes):
            for update in changes.updates:
                found.setdefault(update.target, []).append((number, update))
        return found


@dataclass(frozen=True, slots=True)
class MergedCheckpoint(Checkpoint):
    """A checkpoint whose changed tensors are computed in fp32 while they are read.

    merge: what is merged; sources: name of each computed tensor -> its weights before the change, among ``files``.
    """

    merge: Merge = field(kw_only=True)
    sources: Mapping[str, Tensor] = field(kw_only=True)

    @property
    def parts(self) -> tuple[tuple[Checkpoint, float], ...]:
        """The base and its adapters with their weights."""
        return ((self.merge.base, 1.0), *((each.checkpoint, w) for each, w in zip(self.merge.adapters, self.merge.weights, strict=True)))


def open_checkpoint(
    text: str,
    access: Access,
    subfolder: str | None = None,
    on_repository: Callable[[Repository], None] | None = None,
    *,
    weights: bool = True,
) -> Checkpoint:
    """Open what ``text`` refers to: a checkpoint as it is stored, or BASE+ADAPTER, also BASE+0.7*A+0.3*B, as a `MergedCheckpoint`.

    subfolder: of the base. The other arguments and the errors are those of `checkpoint.open_stored`; and UnsupportedWeights for an adapter
    that is not merged here, with the reason.
    """
    first, *others = summands(text, access.local)
    with ExitStack() as stack:
        found = stack.enter_context(open_stored(first.text, access, subfolder, on_repository, weights=weights))
        if others:
            if is_adapter_alone(found):
                raise UnsupportedWeights(f"{quoted(first.text)} is an adapter itself: name the model first, BASE+ADAPTER.")
            parts = [stack.enter_context(open_stored(each.text, access, None, on_repository, adapter=True)) for each in others]
            found = merge(found, parts, [each.weight for each in others])
        stack.pop_all()
        return found


def open_whole(
    text: str, access: Access, subfolder: str | None = None, on_repository: Callable[[Repository], None] | None = None
) -> Checkpoint:
    """Open ``text`` like `open_checkpoint`, and an adapter alone merged into the base that its configuration names on the Hub.

    Raises UnsupportedWeights if it names none there, itself, or another adapter: nothing else that a configuration names is followed.
    """
    found = open_checkpoint(text, access, subfolder, on_repository)
    if not is_adapter_alone(found):
        return found
    with ExitStack() as stack:
        stack.enter_context(found)
        named = read_adapter(found).configuration.base_reference()
        base = found if parse_reference(named, local=False).name == found.ref else open_stored(named, access, None, on_repository)
        stack.enter_context(base)
        if is_adapter_alone(base):
            raise UnsupportedWeights(
                f"The base that {quoted(found.ref)} names, {quoted(named)}, is an adapter itself: give the model, as BASE+ADAPTER."
            )
        merged = merge(base, [found])
        stack.pop_all()
        return merged


def is_adapter_alone(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint holds an adapter and no base."""
    return is_adapter([file.path for file in checkpoint.files], checkpoint.tensors)


def merge(base: Checkpoint, adapters: Sequence[Checkpoint], weights: Sequence[float] = ()) -> MergedCheckpoint:
    """Return ``base`` with ``adapters`` merged in, one after the other, each change times its weight (1 by default). Reads no weights.

    Raises UnsupportedWeights if that is not defined, or an adapter changes nothing in the base; and the errors of `read_adapter`.
    """
    factors = tuple(weights) or (1.0,) * len(adapters)
    opened, changes = list[Adapter](), list[Changes]()
    files, saved = list(base.files), dict[str, Tensor]()
    for checkpoint, weight in zip(adapters, factors, strict=True):
        with _about(checkpoint):
            adapter = read_adapter(checkpoint)
            found = find_changes(adapter, base)
            _check(adapter, found, base, weight, len(adapters))
        opened.append(adapter)
        changes.append(replace(found, updates=tuple(replace(update, scale=weight * update.scale) for update in found.updates)))
        for name, tensor in found.saved.items():
            saved[name] = replace(tensor, name=name, role=role(name), layer=layer(name), file=len(files) + tensor.file)
        files += checkpoint.files
    how = Merge(base, tuple(opened), factors, tuple(changes))
    computed = {name: MergedTensor(saved.get(name, each[0][1].source), tuple(each)) for name, each in how.updates.items()}
    merged_file = MergedFile("merged weights", list(computed.values()), files, [adapter.checkpoint.files for adapter in opened])
    changed, at = dict(saved), 0
    for name, each in computed.items():
        nbytes = 4 * each.source.elements
        changed[name] = Tensor(name, "F32", each.source.shape, len(files), at, nbytes, role(name), layer(name), False)
        at += nbytes
    notes = list(_notes(how))
    for kept, note in untied(base, dict(changed), {name: tensor for found in changes for name, tensor in found.ties.items()}):
        changed |= kept
        notes.append(note)
    aliases = tuple(alias for alias in base.aliases if alias.name not in changed)
    tensors = [changed.pop(tensor.name, tensor) for tensor in base.tensors]
    read = {f"{checkpoint.ref}/{file.path}" for checkpoint in adapters for file in checkpoint.files}  # an adapter next to its base
    refs = [(base.ref, 1.0), *((adapter.ref, weight) for adapter, weight in zip(opened, factors, strict=True))]
    matrices = [update.module.a.nbytes + update.module.b.nbytes for found in changes for update in found.updates]
    repository = MergedRepository(
        base.repository,
        [checkpoint.repository for checkpoint in adapters],
        joined(refs),
        "+".join(checkpoint.commit for checkpoint in (base, *adapters)),
        all(checkpoint.public for checkpoint in (base, *adapters)),
        sum(matrices) // max(1, len(matrices)),
    )
    of_base: dict[str, Any] = {each.name: getattr(base, each.name) for each in fields(Checkpoint)}
    own: dict[str, Any] = {
        "ref": repository.ref,
        "commit": repository.commit,
        "public": repository.public,
        "files": (*files, merged_file),
        "tensors": tuple(by_name([*tensors, *changed.values()])),
        "quantization": base.quantization if any(tensor.stored is not None for tensor in tensors) else None,
        "notes": (*base.notes, *notes),
        "parallel_reads": repository.parallel_reads,
        "repository": repository,
        "aliases": aliases,
        "not_read": tuple(each for part in (base, *adapters) for each in part.not_read if f"{part.ref}/{each.path}" not in read),
    }
    return MergedCheckpoint(**of_base | own, merge=how, sources={name: each.source for name, each in computed.items()})


def _check(adapter: Adapter, found: Changes, base: Checkpoint, weight: float, adapters: int) -> None:
    """Raise UnsupportedWeights if a merge is not defined, or has no effect."""
    if any(not update.source.has_values for update in found.updates) or (base.quantization is not None and not found.updates):
        kind = f"{base.quantization} weights" if base.quantization else "integers"
        raise UnsupportedWeights(
            f"The base holds {kind}, which are not decoded: merge the adapter into the model from which the base was quantized."
        )
    if not found.updates and not found.saved:
        example = f": {quoted(found.unmatched[0].name, 200)}, for one, since {found.unmatched[0].why}" if found.unmatched else ""
        raise UnsupportedWeights(f"Nothing of it fits {quoted(base.ref, 200)}{example}.")
    if any(update.module.magnitude is not None for update in found.updates) and (adapters > 1 or weight != 1):
        raise UnsupportedWeights("It is DoRA, whose change depends on the norm of the weights: it is merged alone, with weight 1.")
    if found.saved and weight != 1:
        one = quoted(next(iter(found.saved)), 200)
        raise UnsupportedWeights(f"It replaces whole tensors ({one}), which have no weighted sum: give it weight 1.")


def _notes(how: Merge) -> Iterator[Note]:
    yield from (note for adapter in how.adapters for note in adapter.checkpoint.notes if note.code != "adapter")
    for adapter, weight, changes in zip(how.adapters, how.weights, how.changes, strict=True):
        targets, kind = {update.target for update in changes.updates}, adapter.configuration.kind
        yield WORDS.note("merged", tensors=len(targets), base=how.base.ref, weight=weight, kind=kind, adapter=adapter.ref)
        if decoded := sum(update.source.stored is not None for update in changes.updates):
            yield WORDS.note("decoded-base", tensors=decoded)
        if changes.saved:
            yield WORDS.note("replaced-whole", tensors=len(changes.saved), names=tuple(changes.saved))
        if changes.unmatched:
            first = changes.unmatched[0]
            yield WORDS.note("not-merged", modules=len(changes.unmatched), name=first.name, why=first.why)


@contextmanager
def _about(checkpoint: Checkpoint) -> Iterator[None]:
    try:
        yield
    except MantissaError as error:
        raise error.about(f"Adapter {quoted(checkpoint.ref, 200)}") from None
