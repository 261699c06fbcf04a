"""What a reader of the report must know: what was left out, and how the rest is described."""

from collections.abc import Iterator, Sequence

from analyzers import formatting, limits
from analyzers.checkpoints import Checkpoint, Tensor
from analyzers.dtype_detection.chosen import Chosen
from analyzers.formatting import plural

# Of 32- and 64-bit floats below twice the least, and from twice the largest on, the bins of a histogram do not tell the exponent.
LEAST_EXPONENT, LARGEST_EXPONENT = -134, 127


def _tensors(tensors: Sequence[Tensor]) -> str:
    """How many, and of which dtypes."""
    return f"{plural(len(tensors), 'tensor')} ({', '.join(sorted({t.dtype for t in tensors}))})"


def unread(chosen: Chosen) -> tuple[str, float]:
    """The weights whose values are not decoded, in words, empty where there are none; and their share of the elements."""
    others = [t for t in chosen.parameters if not t.has_values and t.elements]
    share = sum(t.elements for t in others) / max(1, sum(t.elements for t in chosen.parameters))
    return (f"{_tensors(others)[:-1]}; {formatting.share(share)} of the elements)" if others else ""), share


def notes(checkpoint: Checkpoint, chosen: Chosen, exact: bool, aggregated: bool, tiny: int, largest: float | None) -> Iterator[str]:
    """Sentences, those on the checkpoint's files first. tiny: nonzero values below 2^(LEAST_EXPONENT + 1); largest: finite magnitude."""
    yield from checkpoint.notes
    if not exact:
        yield (
            "Quick mode read a sample: extremes and counts describe the sample, norms of partly read tensors are scaled up, "
            "shares are estimates with 95% intervals."
        )
    left_out, _ = unread(chosen)
    if left_out:
        yield f"Not plain floats, and excluded from all statistics: {left_out}. The report describes the others."
    scaled = [t for t in chosen.floats if t.scale is not None]
    if scaled:
        yield (
            f"Described by decoded values (code times scale in float32, as the model uses them): {_tensors(scaled)}. "
            f"{plural(len(chosen.scales), 'tensor')} of scales {'counts' if len(chosen.scales) == 1 else 'count'} for storage alone."
        )
    unscaled = [t for t in chosen.floats if t.scale is None and t.dtype.startswith("F8_")]
    if unscaled:
        yield f"Described by stored values, since no matching scales were found: {_tensors(unscaled)}."
    if chosen.buffers:
        are = "stored tensor is a buffer, no parameter", "stored tensors are buffers, not parameters"
        yield f"{plural(len(chosen.buffers), *are)}: listed by name and excluded from everything else."
    if tiny:
        are = "nonzero value is", "nonzero values are"
        yield f"{plural(tiny, *are)} below 2^{LEAST_EXPONENT + 1}: the spectrum of exponents counts all of that at 2^{LEAST_EXPONENT}."
    if largest is not None and largest >= 2.0 ** (LARGEST_EXPONENT + 1):
        yield f"The spectrum of exponents counts values from 2^{LARGEST_EXPONENT + 1} on at 2^{LARGEST_EXPONENT}."
    if aggregated:
        yield f"More than {limits.REPORT_TENSORS:,} tensors: rows are aggregated by layer, role and dtype."
