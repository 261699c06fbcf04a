"""How much a model is run for: bounded where it is run on behalf of others."""

from analyzers.errors import LimitExceeded
from analyzers.language_models.load import OpenModel

# Times as much may be run on a GPU in the same time, at least.
GPU_SPEED = 300


def check_work(opened: OpenModel, tokens: int, largest: int | None, less: str) -> None:
    """Raise LimitExceeded where ``tokens`` times the model's parameters are more than ``largest``; on a GPU `GPU_SPEED` times as much.

    tokens: of all passes together. less: what else to ask for.
    """
    parameters = opened.facts.parameters
    most = None if largest is None else largest * (GPU_SPEED if opened.device == "cuda" else 1)
    if most is not None and parameters * tokens > most:
        raise LimitExceeded(
            f"{tokens:,} tokens (all passes together) through {parameters:,} parameters are more than the {most // parameters:,} that may "
            f"be run at once here (MANTISSA_WEB_MODEL_WORK): take {less} or the command line."
        )
