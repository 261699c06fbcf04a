"""What a look says in sentences."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from analyzers.checkpoints import quoted
from analyzers.terminal import plural
from mantissa.training.look import Look

# From so many steps on, standing still is worth a sentence; and from such a share of swallowed updates.
_STEPS = 10
_SWALLOWED = 0.5


def messages(look: Look, norms: Sequence[tuple[bool, torch.dtype, Tensor]], added: Sequence[str], lost: Sequence[str]) -> Iterator[str]:
    """One sentence for each thing that is wrong or to be known.

    norms: of each trainable one whether it has not moved, its dtype, and its watched values at the start; added, lost: parameters that the
    model has in addition to those at the start, and no longer.
    """
    steps = look.step - look.start
    if look.start:
        yield f"The monitor was attached at step {look.start:,}: its start is that step, and not the beginning of the training."
    if added:
        yield f"{plural(len(added), 'parameter')} came after the monitor was attached, {quoted(added[0])} first: attach a new one."
    if lost:
        yield f"{plural(len(lost), 'parameter')} changed size or dtype or went away, {quoted(lost[0])} first: attach a new monitor."
    if steps < _STEPS:
        return
    still = [(dtype, values) for unmoved, dtype, values in norms if unmoved]
    if still:
        yield f"{len(still):,} of {plural(len(norms), 'norm')} have not moved in {steps:,} steps: {_why(still)}."
    others = look.total.unmoved - len(still)
    if others:
        named = next((name for name in look.unmoved if "norm" not in name.lower()), look.unmoved[0])
        yield (
            f"{others:,} of {look.total.trainable - len(norms):,} other trainable tensors have not moved in {steps:,} steps, "
            f"{quoted(named)} first: no gradient reaches them, or every step rounds away."
        )
    if (look.total.swallowed_share or 0) >= _SWALLOWED:
        yield (
            f"bf16 swallows {100 * (look.total.swallowed_share or 0):.0f}% of the updates since step {look.start:,}: they exist in the "
            "stored weights, and a copy in bf16 would not have them."
        )
    if look.total.update_ratio is None:
        yield "The weights or their last update are not finite, or all 0: the ratio of their norms cannot be given."


def _why(still: Sequence[tuple[torch.dtype, Tensor]]) -> str:
    if any(dtype != torch.bfloat16 for dtype, _ in still):
        return "no gradient reaches them, or their learning rate is 0"
    firsts = {float(values[0]) for _, values in still if values.numel() and bool((values == values[0]).all())}
    if len(firsts) == 1 and (value := abs(firsts.pop())) > 0 and math.isfinite(value):
        # Next to a power of two the values below are half as far apart as those above.
        spacing = math.frexp(value)[1] - (9 if value == 2.0 ** (math.frexp(value)[1] - 1) else 8)
        return f"bf16 cannot represent steps below 2^{spacing} at {value}"
    return "bf16 cannot represent steps that small at their values"
