"""Rules about an adapter (LoRA or the like): whether it changes what it claims to change, of the base that it names."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from analyzers.check.loads import applies
from analyzers.check.report import Finding
from analyzers.check.rules import finding
from analyzers.checkpoints import Access, Checkpoint, MergedCheckpoint, Tensor, quoted, quoted_names
from analyzers.checkpoints.adapters.adapter import Adapter, read_adapter
from analyzers.checkpoints.adapters.configuration import read_configuration, read_object
from analyzers.checkpoints.adapters.merged_checkpoint import open_base
from analyzers.checkpoints.adapters.merged_file import read_values
from analyzers.checkpoints.adapters.updates import Changes, find_changes
from analyzers.checkpoints.tensor_names.adapters import is_adapter_parameter
from analyzers.checkpoints.tensor_names.roles import role
from analyzers.errors import InvalidCheckpoint, MantissaError, UnsupportedWeights
from analyzers.formatting import listed, plural, share
from analyzers.language_models.load_report import LoadingOracle
from analyzers.tensor_words import dtype_name

# Values of a tensor that are compared with the base's, at most, and tensors
_COMPARED, _TENSORS = 1 << 22, 4
# A tensor is unrelated to the base's below this cosine, and a magnitude of DoRA if it is so far from the norms of the weights
_UNRELATED, _APART = 0.1, 0.5
# Matrices in the names of peft: what it loads begins like this, and has no name of an adapter, or the usual one
_PEFT = re.compile(r"(base_model\.model\.)?(.+)\.lora_(?:embedding_)?A(?:\.(?!weight$)([^.]+))?(?:\.weight)?")


def judge(checkpoint: Checkpoint, base: Checkpoint | None, access: Access, unjudged: list[str]) -> tuple[list[Finding], Checkpoint | None]:
    """Judge an adapter alone. base: named in the request, else that of the configuration is opened.

    Returns the findings and the base, open, None if there is none. unjudged: receives what was not judged, and why.
    """
    found = list(upload(checkpoint))
    if found:
        unjudged.append("Whether it fits its base was not judged.")
        return found, base
    try:
        adapter = read_adapter(checkpoint)
    except UnsupportedWeights as error:
        unjudged.append(f"Whether it fits its base was not judged: {error}")
        return found, base
    except InvalidCheckpoint as error:
        unjudged.append("Whether it fits its base was not judged.")
        return [finding("adapter-config", "error", "The configuration is missing or unusable", f"{error} Save the adapter again.")], base
    found += [*modules(adapter), *empty(adapter)]
    if base is None:
        try:
            base = open_base(adapter, access)
        except MantissaError as error:
            unjudged.append(f"Whether its modules match its base was not judged: {error}")
            return found, None
    return [*found, *against_base(adapter, base, find_changes(adapter, base), unjudged)], base


def merged(checkpoint: Checkpoint, unjudged: list[str]) -> Iterator[Finding]:
    """Judge the adapters of BASE+ADAPTER; yields nothing for other checkpoints. unjudged: as for `judge`."""
    if not isinstance(checkpoint, MergedCheckpoint):
        return
    if checkpoint.merge.unmerged:
        detail = (
            "Its files hold base_layer weights next to the matrices of an adapter, which transformers does not load, with "
            f"adapter_config.json or without it: mantissa merge {quoted(checkpoint.ref, 200)} --out FOLDER merges them."
        )
        yield finding("adapter-upload", "error", "An adapter is stored unmerged", detail)
    for adapter, changes in zip(checkpoint.merge.adapters, checkpoint.merge.changes, strict=True):
        yield from (*modules(adapter), *empty(adapter))
        if not checkpoint.merge.unmerged:
            yield from against_base(adapter, checkpoint.merge.base, changes, unjudged)


def upload(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Find whole weights stored as an adapter, and an adapter stored as a model."""
    files = checkpoint.repository.files
    own = [tensor for tensor in checkpoint.tensors if is_adapter_parameter(tensor.name)]
    names = {file.path.rpartition("/")[2] for file in checkpoint.files}
    stored_as_adapter = all(name.startswith("adapter_model.") for name in names)
    if not own and stored_as_adapter and not _of_another_method(checkpoint):
        detail = (
            f"{listed(sorted(names))} holds {plural(len(checkpoint.tensors), 'tensor')} and no matrix of an adapter: a whole model, or "
            "parts of one. Save a merged model with its own save_pretrained, and an adapter before it is merged."
        )
        yield finding("adapter-upload", "error", "Whole weights are stored as an adapter", detail)
    elif own and not stored_as_adapter and any(path.rpartition("/")[2] == "config.json" for path in files):
        detail = (
            "config.json describes a whole model, and the weight files hold an adapter alone: transformers initialises the model at "
            "random. Upload adapter_model.safetensors with adapter_config.json and without config.json, or the merged model."
        )
        yield finding("adapter-upload", "error", "An adapter is stored as a model", detail)


def _of_another_method(checkpoint: Checkpoint) -> bool:
    """Return whether the configuration states a method that is not merged here, whose parameters have names of their own."""
    try:
        read_configuration(checkpoint.repository, checkpoint.files[0].path.rpartition("/")[0])
    except UnsupportedWeights:
        return True
    except InvalidCheckpoint:
        return False
    return False


def modules(adapter: Adapter) -> Iterator[Finding]:
    """Find modules that fit no base at all, and matrices of different dtypes."""
    if adapter.unusable:
        first = adapter.unusable[0]
        names = [each.name for each in adapter.unusable]
        detail = f"{plural(len(names), 'module')} cannot be applied; {quoted(first.name, 200)}: {first.why}. Save the adapter again."
        yield finding("adapter-config", "error", "Matrices disagree with the configuration", detail, names)
    mixed = [each for each in adapter.modules if each.a.dtype != each.b.dtype]
    if mixed:
        one = mixed[0]
        detail = (
            f"{plural(len(mixed), 'module has', 'modules have')} A and B in different dtypes; {quoted(one.name, 200)}: "
            f"{dtype_name(one.a.dtype)} and {dtype_name(one.b.dtype)}. Save both as they were trained."
        )
        yield finding("adapter-dtype", "warning", "A and B have different dtypes", detail, [each.name for each in mixed])


def empty(adapter: Adapter) -> Iterator[Finding]:
    """Find modules that change nothing, since A, B or the scale is 0."""

    def zero(tensor: Tensor) -> bool:
        return not read_values(adapter.checkpoint.files, tensor, 0, tensor.elements).any()

    names = [each.name for each in adapter.modules if each.magnitude is None and (not each.scale or zero(each.b) or zero(each.a))]
    if names:
        every = len(names) == len(adapter.modules) and not adapter.saved
        why = (
            "lora_alpha is 0"
            if not any(each.scale for each in adapter.modules)
            else ("they were never trained, or were saved before training or from a sharded run that did not gather them")
        )
        detail = f"A, B or the scale is 0 in {len(names):,} of {plural(len(adapter.modules), 'module')}: {why}."
        title = "The adapter changes nothing" if every else "Modules that change nothing"
        yield finding("adapter-empty", "error" if every else "warning", title, detail, names)


def against_base(adapter: Adapter, base: Checkpoint, changes: Changes, unjudged: list[str]) -> Iterator[Finding]:
    """Find what does not fit the base: modules without a counterpart, another model's weights, and tokens without embeddings."""
    left_out = [each for each in changes.unmatched if each.works]
    unmatched = [each for each in changes.unmatched if each not in adapter.unusable and not each.works]
    applied = {update.module for update in changes.updates}
    names = [each.name for each in unmatched]
    total = len(unmatched) + len(left_out) + len(applied) + len(changes.saved)
    if unmatched and not applied and not changes.saved:
        detail = (
            f"None of {plural(len(unmatched), 'module')} matches a tensor of {base.ref}; {quoted(unmatched[0].name, 200)}: "
            f"{unmatched[0].why}. It was trained on another model: correct base_model_name_or_path."
        )
        yield finding("adapter-base", "error", "The base does not fit the adapter", detail, names)
    elif unmatched:
        detail = (
            f"{len(unmatched):,} of {plural(total, 'module')} ({share(len(unmatched) / total)}) match nothing in {base.ref}; "
            f"{quoted(unmatched[0].name, 200)}: {unmatched[0].why}. What was trained there has no effect: correct the names, or the base."
        )
        yield finding("adapter-unmatched", "error", "Modules that are not applied", detail, names)
    if left_out:
        detail = (
            f"{len(left_out):,} of {plural(total, 'module')} ({share(len(left_out) / total)}) cannot be merged into {base.ref}; "
            f"{quoted(left_out[0].name, 200)}: {left_out[0].why}. It takes effect only unmerged, in a model that has such a module."
        )
        yield finding("adapter-unmatched", "warning", "Modules that a merge leaves out", detail, [each.name for each in left_out])
    yield from _not_found(adapter, base, changes, unjudged)
    yield from _absent(adapter, base, changes)
    yield from _foreign(adapter, base, changes)
    yield from _copied(adapter, base, changes)
    yield from _tokens(adapter, base, changes)


def _not_found(adapter: Adapter, base: Checkpoint, changes: Changes, unjudged: list[str]) -> Iterator[Finding]:
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
            differ = plural(len(others), "module")
            unjudged.append(f"Whether peft finds {differ}, under other names than in the files of the base, was not judged: {error}")
    if lost:
        one = next(module.a.name for module in adapter.modules if module.name in lost)
        detail = (
            f"peft leaves out {len(lost):,} of {plural(len(adapter.modules), 'module')}, and only warns: the model has no module for "
            f"{quoted(one, 200)}, or target_modules does not name it. Matrices are called base_model.model.MODULE.lora_A.weight, with the "
            "name of the module in the model."
        )
        yield finding("adapter-unmatched", "error", "Modules that peft does not load", detail, lost)


def _absent(adapter: Adapter, base: Checkpoint, changes: Changes) -> Iterator[Finding]:
    """Find modules of the base that the configuration targets by the ends of their names, and for which no matrices are stored."""
    stored = {update.target for update in changes.updates} | changes.saved.keys() | {each.name for each in adapter.unusable}
    ends = {name.rpartition(".")[2] for name in adapter.configuration.targets}
    layers = (base.config or {}).get("num_hidden_layers")
    beyond = layers if type(layers) is int else float("inf")  # layers that predict further tokens, which are not loaded
    names = [
        tensor.name
        for tensor in base.tensors
        if len(tensor.shape) == 2 and tensor.name not in stored and ".experts." not in tensor.name and (tensor.layer or 0) < beyond
        if (path := tensor.name.removesuffix(".weight")).rpartition(".")[2] in ends and path not in stored and _is_target(adapter, path)
    ]
    if names and not all(update.form for update in changes.updates):
        detail = (
            f"target_modules names {plural(len(names), 'more module')} of {base.ref}, such as {quoted(names[0], 200)}, for which the "
            "adapter holds no matrices: they stay as they are in the base. If they were trained, save the adapter again."
        )
        yield finding("adapter-unmatched", "warning", "Targeted modules without matrices", detail, names)


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


def _foreign(adapter: Adapter, base: Checkpoint, changes: Changes) -> Iterator[Finding]:
    """Find stored values that show another base: tensors that replace the base's, and magnitudes of DoRA."""
    stored = {tensor.name: tensor for tensor in base.tensors}
    saved = [(stored[name], tensor) for name, tensor in changes.saved.items() if name in stored and len(tensor.shape) > 1]
    unrelated = [one.name for one, other in saved[:_TENSORS] if _cosine(base, one, adapter.checkpoint, other) < _UNRELATED]
    if unrelated:
        detail = (
            f"{quoted(unrelated[0])}, which the adapter replaces as a whole, has no relation to that of {base.ref}: it was initialised "
            "anew, or trained on another model."
        )
        yield finding("adapter-base", "warning", "Saved modules are not the base's", detail, unrelated)
    plain = [
        update
        for update in changes.updates
        if update.magnitude is not None and not update.form and not update.by_column and update.source.elements <= _COMPARED
    ]
    apart = [update.target for update in plain[:_TENSORS] if _distance(base, adapter.checkpoint, update.source, update.magnitude) > _APART]
    if apart and len(apart) == len(plain[:_TENSORS]):
        detail = (
            f"DoRA's magnitudes begin as the norms of the base's weights, and in {listed(apart)} most are more than {share(_APART)} away "
            f"from those of {base.ref}: it was trained on another model, or far from it."
        )
        yield finding("adapter-base", "warning", "Magnitudes are not those of the base", detail, apart)


def _copied(adapter: Adapter, base: Checkpoint, changes: Changes) -> Iterator[Finding]:
    """Find whole tensors that the adapter replaces by the base's own, as peft stores embeddings next to matrices that change them."""
    stored = {tensor.name: tensor for tensor in base.tensors}
    pairs = [(stored[name], tensor) for name, tensor in changes.saved.items() if name in stored and stored[name].shape == tensor.shape]
    same = [(one, other) for one, other in pairs if _equal(base, one, adapter.checkpoint, other)]
    if same:
        names, nbytes = [one.name for one, _ in same], sum(other.nbytes for _, other in same)
        equal = "equals that of" if len(same) == 1 else "equal those of"
        part = f" in the first {_COMPARED:,} values" if any(one.elements > _COMPARED for one, _ in same) else ""
        detail = (
            f"{quoted_names(names)} of the adapter, {nbytes:,} bytes, {equal} {base.ref}{part}. Leave out "
            "what was not trained: modules_to_save, save_embedding_layers=False."
        )
        yield finding("adapter-empty", "info", "The adapter repeats tensors of its base", detail, names)


def _equal(base: Checkpoint, one: Tensor, model: Checkpoint, other: Tensor) -> bool:
    """Return whether the first values of both are equal in fp32."""
    count = min(one.elements, _COMPARED)
    x, y = (read_values(side.files, tensor, 0, count) for side, tensor in ((base, one), (model, other)))
    return bool(np.array_equal(x, y))


def _cosine(base: Checkpoint, one: Tensor, model: Checkpoint, other: Tensor) -> float:
    """Return the cosine of the first values of both; NaN if one is 0."""
    count = min(one.elements, other.elements, _COMPARED)
    x, y = (read_values(side.files, tensor, 0, count).astype(np.float64) for side, tensor in ((base, one), (model, other)))
    norms = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / norms if norms else float("nan")


def _distance(base: Checkpoint, model: Checkpoint, weights: Tensor, magnitude: Tensor | None) -> float:
    """Return the median of |m / norm - 1| over the rows of a matrix with a norm; NaN if there are none."""
    assert magnitude is not None
    norms = np.linalg.norm(read_values(base.files, weights, 0, weights.elements).reshape(weights.shape[0], -1).astype(np.float64), axis=1)
    m = read_values(model.files, magnitude, 0, magnitude.elements).astype(np.float64)
    known = norms > 0
    return float(np.median(np.abs(m[known] / norms[known] - 1))) if m.size == norms.size and known.any() else float("nan")


def _tokens(adapter: Adapter, base: Checkpoint, changes: Changes) -> Iterator[Finding]:
    """Find tokens that the adapter's tokenizer adds beyond the embedding of the base and of the adapter."""
    rows = {tensor.name: tensor.shape[0] for tensor in base.tensors if tensor.role == "embedding" and len(tensor.shape) == 2}
    rows |= {name: tensor.shape[0] for name, tensor in changes.saved.items() if name in rows}
    last = _last_token(adapter.checkpoint)
    most = max(rows.values(), default=0)
    if rows and last is not None and last >= most:
        detail = (
            f"The adapter's tokenizer has tokens up to number {last:,}, and the embedding has {most:,} rows: the adapter was "
            "saved without the embedding that was resized for them. Save it with save_embedding_layers=True."
        )
        yield finding("adapter-tokens", "error", "Tokens without embeddings", detail)


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
