"""Limit on the amount of computation per model run, for runs on behalf of other people."""

from analyzers.errors import LimitExceeded
from analyzers.language_models.load import OpenModel

# Lower bound on the speed of a GPU relative to a CPU.
GPU_SPEED = 300


def check_work(opened: OpenModel, tokens: int, largest: int | None, less: str) -> None:
    """Raise LimitExceeded if ``tokens`` times the model's parameters exceed ``largest``, or on a GPU `GPU_SPEED` times that.

    tokens: of all passes together. less: what to reduce instead, for the error message.
    """
    parameters = opened.facts.parameters
    most = None if largest is None else largest * (GPU_SPEED if opened.device == "cuda" else 1)
    if most is not None and parameters * tokens > most:
        raise LimitExceeded(
            f"{tokens:,} tokens (all passes together) through {parameters:,} parameters are more than the {most // parameters:,} that may "
            f"be run at once here (MANTISSA_WEB_MODEL_WORK): take {less} or the command line."
        )
