"""What a look says in sentences."""

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import torch
from torch import Tensor

from analyzers.checkpoints import quoted
from analyzers.terminal import percent, plural
from mantissa.training.counting import FINER
from mantissa.training.look import Look

# From so many steps on, standing still is worth a sentence; and from such a share of swallowed or lost updates.
_STEPS = 10
_SWALLOWED = _LOST = 0.5
_FORMATS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}


class Remarks(NamedTuple):
    """What messages say in addition to the figures of a look.

    added, lost: parameters that the model has in addition to those at the start, and no longer. norms: of each trainable one whether it has
    not moved, its dtype, and its watched values at the start. thawed: frozen parameters that changed. dtypes: of the followed trainable
    parameters, of all if there is no optimizer. late: how many shadows began after the monitor. unfollowed: names of trainable parameters
    without a shadow, by the reason; "" for want of an optimizer.
    """

    added: Sequence[str]
    lost: Sequence[str]
    norms: Sequence[tuple[bool, torch.dtype, Tensor]]
    thawed: Sequence[str]
    dtypes: AbstractSet[torch.dtype]
    late: int
    unfollowed: Mapping[str, Sequence[str]]


def messages(look: Look, remarks: Remarks) -> Iterator[str]:
    """One sentence for each thing that is wrong or to be known."""
    steps = look.step - look.start
    if (look.total.lost_share or 0) >= _LOST:
        yield _loss(look, remarks.dtypes)
    if look.start:
        yield f"The monitor was attached at step {look.start:,}: its start is that step, and not the beginning of the training."
    if remarks.added:
        new = plural(len(remarks.added), "parameter")
        yield f"{new} came after the monitor was attached, {quoted(remarks.added[0])} first: attach a new one."
    if remarks.lost:
        yield (
            f"{plural(len(remarks.lost), 'parameter')} changed size or dtype or went away, {quoted(remarks.lost[0])} first: "
            "attach a new monitor."
        )
    if remarks.thawed:
        yield f"{plural(len(remarks.thawed), 'frozen tensor')} changed, {quoted(remarks.thawed[0])} first."
    if remarks.late:
        yield (
            f"{plural(remarks.late, 'tensor')} joined the optimizer, or changed outside its step, after the monitor was attached: what was "
            "intended is measured from then on."
        )
    for reason, names in remarks.unfollowed.items():
        if reason:
            where = "" if len(names) == look.total.trainable else f" for {plural(len(names), 'tensor')}, {quoted(names[0])} first"
            yield f"What the optimizer intended is not measured{where}: {reason}."
        elif not remarks.dtypes & set(FINER):
            yield "What the optimizer intended cannot be read from the stored weights: pass optimizer= to measure what rounding loses."
    if steps < _STEPS:
        return
    still = [(dtype, values) for unmoved, dtype, values in remarks.norms if unmoved]
    if still:
        yield f"{len(still):,} of {plural(len(remarks.norms), 'norm')} have not moved in {steps:,} steps: {_why(still)}."
    others = look.total.unmoved - len(still)
    if others:
        named = next((name for name in look.unmoved if "norm" not in name.lower()), look.unmoved[0])
        yield (
            f"{others:,} of {look.total.trainable - len(remarks.norms):,} other trainable tensors have not moved in {steps:,} steps, "
            f"{quoted(named)} first: no gradient reaches them, or every step rounds away."
        )
    if (look.total.swallowed_share or 0) >= _SWALLOWED:
        yield (
            f"bf16 swallows {100 * (look.total.swallowed_share or 0):.0f}% of the updates since step {look.start:,}: they exist in the "
            "stored weights, and a copy in bf16 would not have them."
        )
    if look.total.update_ratio is None and look.total.values:
        yield "The weights or their last update are not finite, or all 0: the ratio of their norms cannot be given."


def _loss(look: Look, dtypes: AbstractSet[torch.dtype]) -> str:
    stored = " and ".join(sorted(_FORMATS.get(dtype, str(dtype).removeprefix("torch.")) for dtype in dtypes))
    lost = f"{stored} lost {percent(look.total.lost_share)} of the updates"
    lost = f"At this step {lost}" if look.step - look.last == 1 else f"{lost} since step {look.last:,}"
    return f"{lost}." if dtypes & {torch.float32, torch.float64} else f"{lost}: keep fp32 master weights or use stochastic rounding."


def _why(still: Sequence[tuple[torch.dtype, Tensor]]) -> str:
    if any(dtype != torch.bfloat16 for dtype, _ in still):
        return "no gradient reaches them, or their learning rate is 0"
    firsts = {float(values[0]) for _, values in still if values.numel() and bool((values == values[0]).all())}
    if len(firsts) == 1 and (value := abs(firsts.pop())) > 0 and math.isfinite(value):
        # Next to a power of two the values below are half as far apart as those above.
        spacing = math.frexp(value)[1] - (9 if value == 2.0 ** (math.frexp(value)[1] - 1) else 8)
        return f"bf16 cannot represent steps below 2^{spacing} at {value}"
    return "bf16 cannot represent steps that small at their values"
