"""Opens a language model: first outline and tokenizer, then the weights once they are known to fit in memory.

Everything is read at one commit, with the user's token or none. transformers sees a folder with links to the weights, an index built from
their headers, and tokenizer files: no code, no adapter, no other files, and no reason to contact the Hub.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from logging import CRITICAL
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging

from analyzers.checkpoints import (
    Access,
    Checkpoint,
    MemoryRepository,
    MergedCheckpoint,
    canonical_name,
    open_checkpoint,
    open_whole,
    parse_reference,
    quoted,
)
from analyzers.core.errors import InvalidCheckpoint, InvalidRequest, LimitExceeded, ModelTooLarge, UnsupportedWeights
from analyzers.core.notes import Note
from analyzers.core.request import Progress
from analyzers.core.terminal import plural
from analyzers.language_models.batch import Batch
from analyzers.language_models.ffn import ffn_layers, text_config
from analyzers.language_models.loaded_dtypes import compute_buffers, loaded_dtypes
from analyzers.language_models.memory_needs import activation_bytes, available_bytes, offloaded_bytes, place, too_large, weight_bytes
from analyzers.language_models.model_failures import explaining_failures, is_out_of_memory
from analyzers.language_models.model_outline import outline
from analyzers.language_models.offload import Source, StoredTensors, converting_bytes, read_layer_by_layer, stored_tensors
from analyzers.language_models.samples import sample_folder
from analyzers.language_models.tokenizer import Tokenizer, load_tokenizer
from analyzers.language_models.weight_folder import WeightFolder
from analyzers.language_models.words import WORDS
from analyzers.numerics.device import Device, choose_device
from analyzers.numerics.shared_context import SharedContext

# Lower bound on the speed of a GPU relative to a CPU.
_GPU_SPEED = 300
_STORED = {"F32": "float32", "F64": "float32", "F16": "float16"}


class OpenModel(ExitStack):
    """A language model that can be loaded: its configuration and the headers of its weights. Closing it deletes its temporary files.

    name: canonical, with the requested revision; ref, commit, facts: of the checkpoint. outline: the model without weights. device: "cpu"
    or "cuda". lent: memory in bytes of a GPU on which another process will run the model, against which all checks are made; 0 if it runs
    in this process. runs_on: the device that it runs on. dtype: "float32", "bfloat16" or "float16". attention: "sdpa" or "eager"; a family
    without sdpa gets eager. context: the maximum sequence length, None if config.json does not set one. unused: stored tensors that are not
    part of the model, set after loading. offloaded: set by `check`, whether decoder layers are read one at a time (`read_layer_by_layer`).
    """

    def __init__(
        self,
        text: str,
        access: Access,
        *,
        dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
        device: Literal["auto", "cpu", "cuda"] = "auto",
        attention: Literal["sdpa", "eager"] = "sdpa",
        weights: bool = True,
        lent: int = 0,
    ) -> None:
        """Open the language model named by ``text``.

        dtype: "auto" is float32 on the CPU, and on a GPU the dtype of most stored weights. device: "auto" is a GPU if there is one (on
        ZeroGPU, which lends GPUs, only on explicit request). weights: False for a model that is initialized rather than loaded, which needs
        only config.json. Raises InvalidReference; InvalidRequest for an unavailable device; the CheckpointError family, including
        UnknownArchitecture if it is not a causal language model, belongs to an unsupported family or needs custom code; the HubError
        family; LimitExceeded.
        """
        super().__init__()
        with ExitStack() as opening:
            opening.callback(self.close)
            self.device = _device(device)
            self.runs_on: Device = "cuda" if lent else self.device
            self.lent = lent
            checkpoint = self.enter_context(open_whole(text, access) if weights else open_checkpoint(text, access, weights=False))
            merged = checkpoint.merge if isinstance(checkpoint, MergedCheckpoint) else None
            if merged is not None and merged.base.quantization is not None:
                raise UnsupportedWeights(
                    f"The base is quantized ({merged.base.quantization}): run the adapter with the model from which it was quantized."
                )
            self._folder = Path(self.enter_context(TemporaryDirectory(prefix="mantissa-")))
            self.enter_context(_quiet)
            self.name, self.ref, self.commit = canonical_name(text, checkpoint), checkpoint.ref, checkpoint.commit
            self.facts = checkpoint.facts()
            self.outline = outline(checkpoint, attention, weights)
            self.attention: str = self.outline.config._attn_implementation
            self.context = _context(self.outline)
            self.dtype = _dtype(dtype, self.runs_on, checkpoint)
            self.unused, self.offloaded, self._needs = 0, False, 0
            self._torch_dtype: torch.dtype = getattr(torch, self.dtype)
            self._repository = checkpoint.repository
            self._packed = checkpoint.quantization == "mxfp4"
            self._weights: WeightFolder | None = None
            if weights:
                self._weights = WeightFolder(checkpoint, self._folder, _local(text, checkpoint, access), access.token)
            opening.pop_all()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, loaded on first access since random tokens do not need it. Raises the CheckpointError and HubError families."""
        return load_tokenizer(self._repository, self.outline.config, self._folder)

    def check(self, batch: Batch, *, runs: int = 1, extra: int = 0) -> None:
        """Raise ModelTooLarge if running ``batch`` does not fit into memory, or the weights do not fit on disk. Reads no weights.

        A model that does not fit is ``offloaded`` if that is possible and fits. runs: passes side by side; extra: additional bytes the
        caller needs on the same device. Raises InvalidRequest for samples longer than ``context``; InvalidCheckpoint for token ids without
        an embedding.
        """
        dtype = self._torch_dtype
        length = max(batch.lengths)
        if self.context is not None and length > self.context:
            raise InvalidRequest(
                f"Sequences of this model have at most {self.context:,} tokens, and a sample has {length:,}: truncate the samples."
            )
        activations = activation_bytes(self.outline, dtype, [each - 1 for each in batch.lengths], runs)
        self._needs = self.loaded_bytes + activations + extra
        self.offloaded = False
        try:
            self._places()
        except ModelTooLarge:
            if self.lent or not self._stored:  # the time estimate for a lent GPU does not include reading layers again
                raise
            self.offloaded = True
            self._needs = offloaded_bytes(self.outline, dtype) + converting_bytes(self.outline, self._stored, dtype) + activations + extra
            if self._needs > (has := self._free()[0]):
                raise too_large(self._needs, has) from None
        if self._weights is not None and not isinstance(self._repository, MemoryRepository):
            self._weights.check_disk()
        largest, embedded = int(batch.token_ids.max()), cast(Any, self.outline).get_input_embeddings().weight.shape[0]
        if largest >= embedded:
            raise InvalidCheckpoint(
                f"The tokenizer produces token {largest:,}, but the model has only {embedded:,} embeddings: they do not match."
            )

    @property
    def loaded_bytes(self) -> int:
        """Size of the loaded weights."""
        return weight_bytes(self.outline, self._torch_dtype)

    def fetch(self) -> Iterator[Progress]:
        """Download the weights, unless they are samples or local folders.

        Files that are not public are not downloaded if another process runs the model, since only public files are stored where that
        process finds them. Raises ModelTooLarge if they do not fit on disk; the HubError family, AccessDenied.
        """
        if isinstance(self._repository, MemoryRepository) or (self.lent and not self.facts.public):
            return
        assert self._weights is not None
        self._weights.check_disk()
        yield from self._weights.fetch()

    @cached_property
    def _stored(self) -> dict[str, Source] | None:
        """The result of `stored_tensors`; None if the files do not hold the weights as the model needs them."""
        if self._weights is None or self._packed or isinstance(self._repository, MemoryRepository):
            return None
        return stored_tensors(self.outline, self._weights.tensors, self._torch_dtype)

    def _load_offloaded(self) -> nn.Module:
        assert self._weights is not None and self._stored is not None
        with torch.device("meta"):
            model = self._initialized()
        used = {stored.name for source in self._stored.values() for _, stored in source.stored}
        self.unused = len(self._weights.tensors) - len(used)
        weights = StoredTensors(self._stored, self._weights.opened(), self.outline)
        return read_layer_by_layer(cast(PreTrainedModel, model.eval()), weights, self.device)

    def _initialized(self, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            model = cast(Any, type(self.outline))._from_config(self.outline.config, dtype=self._torch_dtype, **self._implementations())
            return cast(nn.Module, model)

    @explaining_failures()
    def load(self) -> nn.Module:
        """Load the model in evaluation mode, weights frozen, on its device or devices; call after `check` and `fetch`.

        Raises ModelTooLarge; InvalidCheckpoint for weights that do not match the architecture, naming the tensor if one is at fault.
        """
        if self.offloaded:
            return self._load_offloaded()
        if isinstance(self._repository, MemoryRepository):
            return self._load_held(self._repository)
        options: dict[str, Any] = {"dtype": self._torch_dtype, "device_map": self._places(), **self._implementations()}
        config = self.outline.config
        if self._packed:
            config.quantization_config = {"quant_method": "mxfp4", "dequantize": True}
        try:
            model, found = cast(Any, type(self.outline)).from_pretrained(
                self._folder,
                config=config,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **options,
            )
        except Exception as error:  # transformers' messages about mismatched weights contain local paths
            if is_out_of_memory(error):
                raise
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise InvalidCheckpoint(
                f"The weights cannot be loaded ({reason}): they are damaged, or not those that config.json describes."
            ) from None
        self.unused = len(found["unexpected_keys"])
        _check_complete(found["mismatched_keys"], found["missing_keys"])
        return cast(nn.Module, model.eval().requires_grad_(False))

    def _load_held(self, held: MemoryRepository) -> nn.Module:
        """Build the model on tensors in memory, which are shared if dtype and device are the same.

        transformers' own loading would write to them: it zeroes the row of the padding token in some families.
        """
        with torch.device("meta"):
            model: Any = self._initialized()
        compute_buffers(model)
        described, dtypes = model.state_dict(), loaded_dtypes(self.outline, self._torch_dtype).dtypes
        # The language model inside a multimodal one has the same tensors under another prefix.
        named = {(name if name in described else name.replace("language_model.", "")): each for name, each in held.tensors.items()}
        given = {name: each.value for name, each in named.items() if name in described}
        shapes = [(name, value.shape, described[name].shape) for name, value in given.items()]
        _check_complete([each for each in shapes if each[1] != each[2]], ())
        missing = described.keys() - given
        self.unused = len(held.tensors) - len(given)
        model.load_state_dict({name: value.to(dtypes[name]) for name, value in given.items()}, strict=False, assign=True)
        model.tie_weights(missing_keys=missing, recompute_mapping=False)  # takes the tied weights out of the missing ones
        _check_complete((), missing)
        return self._placed(model)

    def _placed(self, model: nn.Module) -> nn.Module:
        """Move the model to its device or devices, in evaluation mode, weights frozen."""
        places = self._places()
        if len(places) == 1:
            (place,) = places.values()
            model = model.to(place)
        else:
            from accelerate import dispatch_model

            model = cast(nn.Module, dispatch_model(model, cast(Any, places)))
        return model.eval().requires_grad_(False)

    @explaining_failures()
    def initialize(self, seed: int) -> nn.Module:
        """Return the model with random initial weights, the same on every device, otherwise like `load`; call after `check`."""
        return self._placed(self._initialized(seed))

    def notes(self) -> Iterator[Note]:
        """Yield notes on stored weights that were decoded or not used, and on layers that were read one at a time."""
        if self.offloaded:
            yield WORDS.note("offloaded", bytes=weight_bytes(self.outline, self._torch_dtype))
        if self.unused:
            yield WORDS.note("unused", tensors=self.unused)
        if self.facts.quantization is not None:
            yield WORDS.note("decoded")

    def _implementations(self) -> dict[str, str | None]:
        """Return the implementations of attention and experts.

        torch's grouped matrix product requires widths that are multiples of 16 bytes, in any dtype.
        """
        odd = any(ffn.experts is not None and (ffn.width % 8 or ffn.hidden % 8) for ffn in ffn_layers(self.outline))
        return {"attn_implementation": self.attention, "experts_implementation": "eager" if odd else None}

    def _free(self) -> list[int]:
        """Return the free memory, in bytes, of each device that the model may run on."""
        return [self.lent] if self.lent else available_bytes(self.device)

    def _places(self) -> dict[str, int | str]:
        """Return the device of each module. Raises ModelTooLarge."""
        free = self._free()
        if self.runs_on == "cuda":
            return {**place(self.outline, self._torch_dtype, self._needs, free)}
        if self._needs > free[0]:
            raise too_large(self._needs, free[0])
        return {"": "cpu"}


def _local(text: str, checkpoint: Checkpoint, access: Access) -> Path | None:
    """Return the folder of a sample or local checkpoint, or of a base, None for a Hub repository and a model in memory."""
    reference, *others = parse_reference(text, access.local).all
    if len(checkpoint.parts) > 1 + len(others):  # an adapter alone, whose configuration names a base on the Hub, or a sample
        reference = parse_reference(checkpoint.parts[0][0].ref, local=False)
    if reference.kind in ("hub", "memory"):
        return None
    return sample_folder(reference.name) if reference.kind == "sample" else Path(reference.name).resolve()


def _device(requested: Literal["auto", "cpu", "cuda"]) -> Device:
    if requested == "auto":
        return "cuda" if torch.cuda.is_available() and "SPACES_ZERO_GPU" not in os.environ else "cpu"
    return choose_device(requested)


def _dtype(requested: str, device: Device, checkpoint: Checkpoint) -> str:
    if requested != "auto":
        return requested
    if device == "cpu":
        return "float32"
    stored: dict[str, int] = {}
    for tensor in checkpoint.tensors:
        stored[tensor.stored_dtype] = stored.get(tensor.stored_dtype, 0) + tensor.on_disk.nbytes
    return _STORED.get(max(stored, key=stored.__getitem__, default=""), "bfloat16")


def _check_complete(mismatched: Iterable[tuple[str, Sequence[int], Sequence[int]]], missing: Iterable[str]) -> None:
    """Raise InvalidCheckpoint if there are ``mismatched`` tensors (name, stored shape, described shape), or ``missing`` ones."""
    for name, stored, described in sorted(mismatched)[:1]:
        raise InvalidCheckpoint(f"{quoted(name)} is stored as {tuple(stored)}, and config.json describes {tuple(described)}.")
    if names := sorted(missing):
        raise InvalidCheckpoint(f"{len(names):,} of the tensors that config.json describes are missing, {quoted(names[0])} first.")


def check_work(opened: OpenModel, tokens: int, largest: int | None, less: str) -> None:
    """Raise LimitExceeded if ``tokens`` times the model's parameters exceed ``largest``, or on a GPU `_GPU_SPEED` times that.

    tokens: of all passes together. less: what to reduce instead, for the error message.
    """
    parameters = opened.facts.parameters
    most = None if largest is None else largest * (_GPU_SPEED if opened.runs_on == "cuda" else 1)
    if most is not None and parameters * tokens > most:
        raise LimitExceeded(
            f"{tokens:,} tokens (all passes together) through {parameters:,} parameters are more than the {most // parameters:,} that may "
            f"be run at once here (MANTISSA_WEB_MODEL_WORK): use {less} or the command line."
        )


def _context(outline: nn.Module) -> int | None:
    """Return the maximum sequence length. Raises InvalidCheckpoint if no token can be predicted."""
    settings = text_config(outline)
    ends = [getattr(settings, name, None) for name in ("max_position_embeddings", "max_seq_len")]  # MPT calls it max_seq_len
    context = min((end for end in ends if isinstance(end, int)), default=None)
    if context is not None and context < 2:
        most = f"at most {plural(context, 'token')} (max_position_embeddings)"
        raise InvalidCheckpoint(f"config.json states a sequence length of {most}: none can be predicted.")
    return context


@contextmanager
def _silenced() -> Iterator[None]:
    """Suppress transformers' progress bars and messages on stderr, which belongs to this program, while a model is open."""
    transformers: Any = logging
    level, bars = transformers.get_verbosity(), transformers.is_progress_bar_enabled()
    transformers.set_verbosity(CRITICAL)
    transformers.disable_progress_bar()
    try:
        yield
    finally:
        transformers.set_verbosity(level)
        if bars:
            transformers.enable_progress_bar()


_quiet = SharedContext(_silenced)
