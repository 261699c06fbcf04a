"""Rules about an adapter (LoRA or the like): whether it changes what it claims to change, of the base that it names."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from analyzers.check.loads import applies
from analyzers.check.report import Finding, Level
from analyzers.check.words import WORDS, finding
from analyzers.checkpoints import Access, Checkpoint, MergedCheckpoint, Tensor, quoted
from analyzers.checkpoints.adapters.adapter import Adapter, Unmatched, read_adapter
from analyzers.checkpoints.adapters.configuration import read_object
from analyzers.checkpoints.adapters.merged_checkpoint import open_base
from analyzers.checkpoints.adapters.merged_file import read_values
from analyzers.checkpoints.adapters.updates import Changes, find_changes
from analyzers.checkpoints.tensor_names.adapters import is_adapter_parameter
from analyzers.checkpoints.tensor_names.roles import role
from analyzers.core.errors import InvalidCheckpoint, MantissaError, UnsupportedWeights
from analyzers.core.notes import Note
from analyzers.language_models.load_report import LoadingOracle

# Matrices in the names of peft: what it loads begins like this, and has no name of an adapter, or the usual one
_PEFT = re.compile(r"(base_model\.model\.)?(.+)\.lora_(?:embedding_)?A(?:\.(?!weight$)([^.]+))?(?:\.weight)?")


def judge(checkpoint: Checkpoint, base: Checkpoint | None, access: Access, notes: list[Note]) -> tuple[list[Finding], Checkpoint | None]:
    """Judge an adapter alone. base: named in the request, else that of the configuration is opened.

    Returns the findings and the base, open, None if there is none. notes: receives what was not judged, and why.
    """
    found = list(upload(checkpoint))
    try:
        adapter = read_adapter(checkpoint)
    except InvalidCheckpoint as error:
        notes.append(WORDS.note("fit-not-judged", why="its files are not those of an adapter that can be used."))
        return found or [finding("adapter-config", "error", "adapter-configuration-unusable", why=str(error))], base
    except UnsupportedWeights as error:  # a method that is not merged here, whose parameters have names of their own
        notes.append(WORDS.note("fit-not-judged", why=str(error)))
        return [], base
    if found:
        notes.append(WORDS.note("fit-not-judged", why="it is stored as a model."))
        return found, base
    found += [*modules(adapter), *empty(adapter)]
    if base is None:
        try:
            base = open_base(adapter, access)
        except MantissaError as error:
            notes.append(WORDS.note("fit-not-judged", why=str(error)))
            return found, None
    return [*found, *against_base(adapter, base, find_changes(adapter, base), notes)], base


def merged(checkpoint: Checkpoint, notes: list[Note]) -> Iterator[Finding]:
    """Judge the adapters of BASE+ADAPTER; yields nothing for other checkpoints. notes: as for `judge`."""
    if not isinstance(checkpoint, MergedCheckpoint):
        return
    if checkpoint.merge.unmerged:
        yield finding("adapter-upload", "error", "adapter-stored-unmerged", model=quoted(checkpoint.ref, 200))
    for adapter, changes in zip(checkpoint.merge.adapters, checkpoint.merge.changes, strict=True):
        yield from (*modules(adapter), *empty(adapter))
        if not checkpoint.merge.unmerged:
            yield from against_base(adapter, checkpoint.merge.base, changes, notes)


def upload(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Find whole weights stored as an adapter, and an adapter stored as a model."""
    files = checkpoint.repository.files
    own = [tensor for tensor in checkpoint.tensors if is_adapter_parameter(tensor.name)]
    names = {file.path.rpartition("/")[2] for file in checkpoint.files}
    stored_as_adapter = all(name.startswith("adapter_model.") for name in names)
    if not own and stored_as_adapter:
        yield finding("adapter-upload", "error", "weights-stored-as-adapter", files=tuple(sorted(names)), tensors=len(checkpoint.tensors))
    elif own and not stored_as_adapter and any(path.rpartition("/")[2] == "config.json" for path in files):
        yield finding("adapter-upload", "error", "adapter-stored-as-model")


def modules(adapter: Adapter) -> Iterator[Finding]:
    """Find modules that fit no base at all, and matrices of different dtypes."""
    if adapter.unusable:
        first, names = adapter.unusable[0], [each.name for each in adapter.unusable]
        yield finding("adapter-config", "error", "modules-unusable", names, modules=len(names), name=first.name, why=first.why)
    mixed = [each for each in adapter.modules if each.a.dtype != each.b.dtype]
    if mixed:
        one, names = mixed[0], [each.name for each in mixed]
        dtypes = {"a": one.a.dtype, "b": one.b.dtype}
        yield finding("adapter-dtype", "warning", "dtypes-differ", names, modules=len(mixed), name=one.name, **dtypes)


def empty(adapter: Adapter) -> Iterator[Finding]:
    """Find modules that change nothing, since A, B or the scale is 0."""

    def zero(tensor: Tensor) -> bool:
        return not read_values(adapter.checkpoint.files, tensor, 0, tensor.elements).any()

    names = [each.name for each in adapter.modules if each.magnitude is None and (not each.scale or zero(each.b) or zero(each.a))]
    if names:
        every = len(names) == len(adapter.modules) and not adapter.saved
        level: Level = "error" if every else "warning"
        yield finding("adapter-empty", level, "modules-without-effect", names, empty=len(names), modules=len(adapter.modules))


def against_base(adapter: Adapter, base: Checkpoint, changes: Changes, notes: list[Note]) -> Iterator[Finding]:
    """Find what does not fit the base: modules without a counterpart, another model's weights, and tokens without embeddings."""
    left_out = [each for each in changes.unmatched if each.works]
    unmatched = [each for each in changes.unmatched if each not in adapter.unusable and not each.works]
    applied = {update.module for update in changes.updates}
    total = len(unmatched) + len(left_out) + len(applied) + len(changes.saved)

    def found(rule: str, level: Level, code: str, lost: Sequence[Unmatched]) -> Iterator[Finding]:
        if lost:
            values: dict[str, Any] = {"unmatched": len(lost), "modules": total, "share": len(lost) / total, "base": base.ref}
            yield finding(rule, level, code, [each.name for each in lost], **values, name=lost[0].name, why=lost[0].why)

    if applied or changes.saved:
        yield from found("adapter-unmatched", "error", "modules-not-applied", unmatched)
    else:
        yield from found("adapter-base", "error", "base-does-not-fit", unmatched)
    yield from found("adapter-unmatched", "warning", "modules-not-merged", left_out)
    yield from _not_found(adapter, base, changes, notes)
    yield from _tokens(adapter, base, changes)


def _not_found(adapter: Adapter, base: Checkpoint, changes: Changes, notes: list[Note]) -> Iterator[Finding]:
    """Find modules that peft does not find in the model under their names: it leaves them out, and only warns.

    Where names differ from those of the base's files, transformers tells whether the model has such modules.
    """
    targets = {update.module: update.target for update in changes.updates if update.form in ("", "transposed")}
    modules = [module for module in adapter.modules if adapter.configured and module.name in targets and module.name.endswith(".weight")]
    parts = {module.name: match.groups() for module in modules if (match := _PEFT.fullmatch(module.a.name)) is not None}
    lost = [
        name
        for name, (prefix, path, label) in parts.items()
        if not prefix or label not in (None, "default") or (role(name) not in ("head", "embedding") and not _is_target(adapter, path))
    ]
    others = {targets[name]: f"{parts[name][1]}.weight" for name in parts.keys() - {*lost} if "base_layer" not in parts[name][1]}
    others = {target: name for target, name in others.items() if target != name}
    if others:
        try:
            unknown = _unknown(base, others)
            lost += [name for name, (_, path, _) in parts.items() if f"{path}.weight" in unknown]
        except MantissaError as error:
            notes.append(WORDS.note("names-not-judged", modules=len(others), why=str(error)))
    if lost:
        first = next(module.a.name for module in adapter.modules if module.name in lost)
        values = {"lost": len(lost), "modules": len(adapter.modules)}
        yield finding("adapter-unmatched", "error", "modules-that-peft-ignores", lost, **values, name=first)


def _is_target(adapter: Adapter, path: str) -> bool:
    """Return whether the configuration targets a module, if it tells that by the ends of names."""
    targets = adapter.configuration.targets
    return not targets or any(f".{path}".endswith(f".{target}") for target in targets)


def _unknown(base: Checkpoint, others: Mapping[str, str]) -> set[str]:
    """Return the names for which the model has no weights. others: tensor of the base -> its name in the adapter."""
    if not applies(base) or "architectures" not in (base.config or {}):
        raise UnsupportedWeights("config.json of the base names no model of transformers.")
    renamed = replace(base, tensors=tuple(replace(tensor, name=others.get(tensor.name, tensor.name)) for tensor in base.tensors))
    with LoadingOracle(renamed) as oracle:
        loading = oracle.ask()
    if loading.refused and not loading.unexpected:
        raise UnsupportedWeights(f"transformers refuses the base: {quoted(loading.refused, 200)}.")
    return {*loading.unexpected} & {*others.values()}


def _tokens(adapter: Adapter, base: Checkpoint, changes: Changes) -> Iterator[Finding]:
    """Find tokens that the adapter's tokenizer adds beyond the embedding of the base and of the adapter."""
    rows = {tensor.name: tensor.shape[0] for tensor in base.tensors if tensor.role == "embedding" and len(tensor.shape) == 2}
    rows |= {name: tensor.shape[0] for name, tensor in changes.saved.items() if name in rows}
    last = _last_token(adapter.checkpoint)
    most = max(rows.values(), default=0)
    if rows and last is not None and last >= most:
        yield finding("adapter-tokens", "error", "tokens-without-embeddings", last=last, rows=most)


def _last_token(checkpoint: Checkpoint) -> int | None:
    """Return the largest number of an added token; None if no file says."""
    numbers: list[int] = []
    added = _json(checkpoint, "added_tokens.json")
    numbers += [number for number in added.values() if type(number) is int]
    decoder = _json(checkpoint, "tokenizer_config.json").get("added_tokens_decoder")
    numbers += [int(number) for number in decoder if number.isdecimal() and len(number) < 10] if isinstance(decoder, dict) else []
    return max(numbers, default=None)


def _json(checkpoint: Checkpoint, name: str) -> Mapping[str, Any]:
    """Read a JSON object from the folder of the weights; empty if it is missing, too large or something else."""
    folder = checkpoint.files[0].path.rpartition("/")[0]
    try:
        return read_object(checkpoint.repository, f"{folder}/{name}".lstrip("/")) or {}
    except InvalidCheckpoint:
        return {}
