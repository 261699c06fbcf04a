"""Rules about an adapter (LoRA or the like): whether it changes what it claims to change, of the base that it names."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from analyzers.check.report import Finding, Level
from analyzers.check.words import WORDS, finding
from analyzers.checkpoints import Access, Checkpoint, MergedCheckpoint, Tensor
from analyzers.checkpoints.adapters.adapter import Adapter, Unmatched, read_adapter
from analyzers.checkpoints.adapters.merged_checkpoint import open_base
from analyzers.checkpoints.adapters.merged_file import read_values
from analyzers.checkpoints.adapters.updates import Changes, find_changes
from analyzers.checkpoints.tensor_names.adapters import is_adapter_parameter
from analyzers.core.errors import InvalidCheckpoint, MantissaError, UnsupportedWeights
from analyzers.core.notes import Note

# Names of matrices that peft loads: without the modules of wrappers, and with no name of an adapter, or the usual one
_OF_PEFT = re.compile(
    r"base_model\.model\.(?!.*(^|\.)(module|_orig_mod|_fsdp_wrapped_module|base_model)\.).+\.lora_(A(\.default)?\.weight|embedding_A(\.default)?)"
)


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
    found += empty(adapter)
    if base is None:
        try:
            base = open_base(adapter, access)
        except MantissaError as error:
            notes.append(WORDS.note("fit-not-judged", why=str(error)))
            return found, None
    return [*found, *against_base(adapter, base, find_changes(adapter, base))], base


def merged(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Judge the adapters of BASE+ADAPTER, and find one that is stored with its base in the same files."""
    if any(".base_layer." in tensor.name for tensor in checkpoint.tensors):
        yield finding("adapter-upload", "error", "adapter-stored-unmerged")
    if isinstance(checkpoint, MergedCheckpoint):
        for adapter, changes in zip(checkpoint.merge.adapters, checkpoint.merge.changes, strict=True):
            yield from (*empty(adapter), *against_base(adapter, checkpoint.merge.base, changes))


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


def empty(adapter: Adapter) -> Iterator[Finding]:
    """Find modules that change nothing, since A, B or the scale is 0."""

    def zero(tensor: Tensor) -> bool:
        return not read_values(adapter.checkpoint.files, tensor, 0, tensor.elements).any()

    names = [each.name for each in adapter.modules if each.magnitude is None and (not each.scale or zero(each.b) or zero(each.a))]
    if names:
        every = len(names) == len(adapter.modules) and not adapter.saved
        level: Level = "error" if every else "warning"
        yield finding("adapter-empty", level, "modules-without-effect", names, empty=len(names), modules=len(adapter.modules))


def against_base(adapter: Adapter, base: Checkpoint, changes: Changes) -> Iterator[Finding]:
    """Find what does not fit the base: modules without a counterpart, or another model's weights."""
    left_out = [each for each in changes.unmatched if each.works]
    unmatched = [each for each in changes.unmatched if not each.works]
    applied = {update.module.name for update in changes.updates}
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
    ignored = [module for module in adapter.modules if not _OF_PEFT.fullmatch(module.a.name)]
    if ignored:
        names, counts = [module.name for module in ignored], {"lost": len(ignored), "modules": len(adapter.modules)}
        yield finding("adapter-unmatched", "error", "modules-that-peft-ignores", names, **counts, name=ignored[0].a.name)
