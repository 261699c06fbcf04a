"""Runs a base with its adapters beside it, unmerged: each changed module computes W x + s B (A x), with peft's modules.

peft gets copies of the adapters' weight files, and configurations that are written anew from what was validated: nothing else of an
adapter's configuration takes effect.
"""

import json
import re
import warnings
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from analyzers.checkpoints import Checkpoint, MergedCheckpoint, quoted
from analyzers.checkpoints.adapters.adapter import AdaptedModule, Adapter
from analyzers.checkpoints.adapters.configuration import FILE, by_pattern
from analyzers.checkpoints.adapters.updates import Changes
from analyzers.checkpoints.repository import copy_range
from analyzers.core.errors import InvalidRequest, UnsupportedWeights
from analyzers.core.extras import extras_explained
from analyzers.language_models.model_failures import is_out_of_memory

_MERGED = "run it merged (--adapter merged)"


def check_beside(checkpoint: Checkpoint, outline: nn.Module) -> MergedCheckpoint:
    """Return ``checkpoint`` if its adapters can run unmerged. Reads no weights.

    Raises InvalidRequest if it has no adapter, MissingExtra without peft, UnsupportedWeights for an adapter that peft does not load.
    """
    if not isinstance(checkpoint, MergedCheckpoint):
        raise InvalidRequest(f"{quoted(checkpoint.ref)} has no adapter to run unmerged: name one, as BASE+ADAPTER.")
    with extras_explained():
        import peft  # noqa: F401
    for adapter, changes in zip(checkpoint.merge.adapters, checkpoint.merge.changes, strict=True):
        why = _obstacle(adapter, changes, outline)
        if why:
            raise UnsupportedWeights(f"Adapter {quoted(adapter.ref, 200)} cannot run unmerged, since {why}: {_MERGED}.")
    return checkpoint


def adapter_bytes(checkpoint: MergedCheckpoint) -> int:
    """Return the size of all matrices in memory: peft holds them in fp32."""
    return sum(4 * tensor.elements for adapter in checkpoint.merge.adapters for tensor in adapter.checkpoint.tensors)


def attach(model: nn.Module, checkpoint: MergedCheckpoint, folder: Path) -> None:
    """Put peft's modules around those of ``model``, the loaded base, that the adapters change. folder: for temporary files.

    Raises UnsupportedWeights if peft refuses an adapter.
    """
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer

    how = checkpoint.merge
    names = [str(number) for number in range(len(how.adapters))]
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):  # peft initializes matrices at random before it loads them
        warnings.simplefilter("ignore")
        whole: Any = None
        for name, adapter, changes in zip(names, how.adapters, how.changes, strict=True):
            _write(adapter, changes, folder / f"adapter-{name}")
            try:
                if whole is None:
                    whole = PeftModel.from_pretrained(cast(Any, model), str(folder / f"adapter-{name}"), adapter_name=name)
                else:
                    whole.load_adapter(str(folder / f"adapter-{name}"), adapter_name=name)
            except Exception as error:  # its messages contain local paths
                if is_out_of_memory(error):
                    raise
                raise UnsupportedWeights(
                    f"peft cannot load adapter {quoted(adapter.ref, 200)} on this base ({type(error).__name__}): {_MERGED}."
                ) from None
        whole.base_model.set_adapter(names)
    for module in model.modules():
        if isinstance(module, LoraLayer):
            for name, weight in zip(names, how.weights, strict=True):
                if weight != 1:
                    module.set_scale(name, weight)


def _modules(adapter: Adapter, changes: Changes) -> list[AdaptedModule]:
    """Return the modules that change something."""
    used = {update.module.name for update in changes.updates}
    return [module for module in adapter.modules if module.name in used]


def _obstacle(adapter: Adapter, changes: Changes, outline: nn.Module) -> str:
    """Return why an adapter cannot run unmerged, as a clause; "" if it can."""
    known, head = dict(outline.named_modules()), cast(Any, outline).get_output_embeddings()
    files, stated = adapter.checkpoint.files, adapter.checkpoint.ref
    if len(files) > 1 or not files[0].path.endswith(".safetensors"):
        return "its matrices are not in one safetensors file"
    for module in _modules(adapter, changes):
        path = module.name.removesuffix(".weight")
        named = re.fullmatch(r"base_model\.model\.(.+)\.lora_(?:A\.weight|embedding_A)", module.a.name)
        if named is None:
            return f"peft loads no matrix of the name {quoted(module.a.name, 200)}"
        if named[1] != path or path not in known:
            return f"the model that transformers runs has no module {quoted(named[1], 200)}"
        if known[path] is head:
            return f"it changes the head, {quoted(path, 200)}"
    return "" if changes.updates else f"{quoted(stated, 200)} only replaces whole tensors"


def _write(adapter: Adapter, changes: Changes, folder: Path) -> None:
    """Write an adapter as peft reads it."""
    own, modules = adapter.configuration, _modules(adapter, changes)
    names = [module.name.removesuffix(".weight") for module in modules]
    rank, alpha = own.rank or modules[0].rank, own.alpha
    alphas = by_pattern(own.alphas, names)
    settings = {
        "peft_type": "LORA",
        "target_modules": names,
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {re.escape(name): m.rank for name, m in zip(names, modules, strict=True) if m.rank != rank},
        "alpha_pattern": {re.escape(name): value for name, value in alphas.items() if value != alpha},
        "use_rslora": own.rslora,
        "use_dora": own.dora,
        "fan_in_fan_out": own.fan_in_fan_out,
    }
    folder.mkdir()
    (folder / FILE).write_text(json.dumps(settings), encoding="utf-8")
    (file,) = adapter.checkpoint.files
    with (folder / "adapter_model.safetensors").open("wb") as copy:
        for _ in copy_range(file, 0, file.size, copy):
            pass
