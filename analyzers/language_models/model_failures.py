"""Translates failures inside a model into error messages: the code is transformers', its parameters come from an untrusted config.json."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from analyzers.core.errors import InvalidCheckpoint, InvalidRequest, MantissaError, ModelTooLarge

_NO_KERNEL = re.compile(r'"?(\w+)"? not implemented for \'(Half|BFloat16)\'')
_KINDS = {"Half": "fp16", "BFloat16": "bf16"}
# Messages of torch, of the system and of Python for exhausted host memory.
_SPENT = re.compile(r"not enough memory|can(no|')t allocate memory|bad_alloc|can't start new thread", re.IGNORECASE)


@contextmanager
def explaining_failures(variant: str = "") -> Iterator[None]:
    """Context manager that translates torch's errors for exhausted memory and for operations a dtype does not support on this device.

    variant: name of the variant being run, if there are several. Raises ModelTooLarge and InvalidRequest.
    """
    try:
        yield
    except (MemoryError, RuntimeError, NotImplementedError, OSError) as error:  # torch.OutOfMemoryError is a RuntimeError
        if is_out_of_memory(error):
            raise ModelTooLarge("The run needs more memory than there is: choose fewer or shorter samples, or a smaller model.") from None
        missing = _NO_KERNEL.search(str(error))
        if missing is None:
            raise
        kind, who = _KINDS[missing[2]], f"Variant {variant}" if variant else "The model"
        raise InvalidRequest(
            f"{who} cannot run here: this build of torch has no {kind} form of {missing[1]} for the device. Leave {kind} out, "
            "or choose another device."
        ) from None


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error says that memory is exhausted."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or _SPENT.search(str(error)) is not None


@contextmanager
def running() -> Iterator[None]:
    """Context manager for a model call: every error becomes one of this package's errors, as in `explaining_failures`, or
    InvalidCheckpoint.

    A config.json may contain contradictions that only show when the first tokens reach the weights.
    """
    try:
        with explaining_failures():
            yield
    except MantissaError:
        raise
    except Exception as error:  # any error is possible: the library receives untrusted values
        raise InvalidCheckpoint(
            f"The model cannot be run: the parts that config.json describes do not fit together ({type(error).__name__})."
        ) from error


def not_finite(what: str, dtype: torch.dtype) -> InvalidCheckpoint:
    """Return the error for non-finite values of ``what``, such as "The model's losses", in a model running in ``dtype``."""
    kind = str(dtype).removeprefix("torch.")
    narrow = dtype in (torch.float16, torch.bfloat16)
    advice = "choose --dtype float32, or another model" if narrow else "its weights are damaged or too large"
    return InvalidCheckpoint(f"{what} are not finite when it runs in {kind}: {advice}.")
