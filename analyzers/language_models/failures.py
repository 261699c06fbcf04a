"""What is said where the code of a model fails while it runs: it is transformers', and its numbers come from a config.json."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from analyzers.errors import InvalidCheckpoint, InvalidRequest, MantissaError, ModelTooLarge

_NO_KERNEL = re.compile(r'"?(\w+)"? not implemented for \'(Half|BFloat16)\'')
_KINDS = {"Half": "fp16", "BFloat16": "bf16"}
_SPENT = re.compile(r"not enough memory|can't allocate memory")  # what torch says of the processor's


@contextmanager
def explained(variant: str = "") -> Iterator[None]:
    """Says what torch says of memory that is spent, and of an operation that it does not have for a dtype on this device.

    variant: the name of what runs, where there are several. Raises ModelTooLarge and InvalidRequest.
    """
    try:
        yield
    except (MemoryError, RuntimeError, NotImplementedError) as error:  # torch.OutOfMemoryError is a RuntimeError
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or _SPENT.search(str(error)):
            raise ModelTooLarge("The run needs more memory than there is: choose fewer or shorter samples, or a smaller model.") from None
        found = _NO_KERNEL.search(str(error))
        if found is None:
            raise
        kind, who = _KINDS[found[2]], f"Variant {variant}" if variant else "The model"
        raise InvalidRequest(
            f"{who} cannot run here: this build of torch has no {kind} form of {found[1]} for the device. Leave {kind} out, "
            "or choose another device."
        ) from None


@contextmanager
def running() -> Iterator[None]:
    """Around a call of a model: whatever goes wrong in it becomes an error of ours, as of `explained`, or InvalidCheckpoint.

    A config.json may contradict itself in ways that nobody sees before the first tokens meet the weights.
    """
    try:
        with explained():
            yield
    except MantissaError:
        raise
    except Exception as error:  # as with every library that is given values from outside
        raise InvalidCheckpoint(
            f"The model cannot be run: what config.json says of its parts does not fit together ({type(error).__name__})."
        ) from error
