"""Writes the sentences of a look."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from analyzers.checkpoints import quoted
from analyzers.core.terminal import percent, plural
from mantissa.training.measurement import Look, RoleLook
from mantissa.training.update_counts import FINER

# Minimum number of steps for a sentence on unmoved tensors, and minimum shares of swallowed or lost updates for one on them.
_STEPS = 10
_SWALLOWED = _LOST = 0.5
_FORMATS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}


class Part(NamedTuple):
    """A watched tensor at a look. moved: since the start.

    intended: whether its shadow has moved, None if that is not known. unfollowed: why it has no shadow, None if it has one; "" without an
    optimizer.
    """

    name: str
    role: str
    dtype: torch.dtype
    trainable: bool
    moved: bool
    intended: bool | None
    unfollowed: str | None


def messages(look: Look, parts: Sequence[Part], gone: Sequence[str], formats: Mapping[torch.dtype, RoleLook], late: int) -> Iterator[str]:
    """Yield one sentence for each problem or fact worth knowing.

    parts: the watched tensors. gone: parameters that are not what they were at the start, or were not there. formats: figures of the
    trainable parameters in each dtype with followed parameters; without an optimizer, in every dtype. late: number of shadows that began
    after the monitor.
    """
    steps = look.step - look.start
    trained = [part for part in parts if part.trainable]
    if look.total.update_ratio is None and look.total.values:
        yield "The weights or their last update are not finite, or all 0: figures that need their norms are null."
    if (look.total.lost_norm or 0) > 1:
        yield (
            f"Rounding adds more than it takes: since step {look.last:,} the stored weights miss the update that the optimizer intended by "
            f"{look.total.lost_norm:.3g} times its norm."
        )
    for dtype, row in formats.items():
        if (row.lost_share or 0) >= _LOST:
            yield _loss(look, dtype, row)
    if look.start:
        yield f"The monitor was attached at step {look.start:,}: its start is that step, and not the beginning of the training."
    if gone:
        yield (
            f"{plural(len(gone), 'parameter')} changed size, dtype or device, came or went away since the monitor was attached, "
            f"{quoted(gone[0])} first: attach a new one."
        )
    if thawed := [part.name for part in parts if part.moved and not part.trainable]:
        yield f"{plural(len(thawed), 'frozen tensor')} changed, {quoted(thawed[0])} first."
    if late:
        yield (
            f"{plural(late, 'tensor')} joined the optimizer, or changed outside its step in weights or state, after the monitor was "
            "attached: what was intended is measured from then on."
        )
    for reason in dict.fromkeys(part.unfollowed for part in trained):
        names = [part.name for part in trained if part.unfollowed == reason]
        if reason:
            where = "" if len(names) == len(trained) else f" for {plural(len(names), 'tensor')}, {quoted(names[0])} first"
            yield f"What the optimizer intended is not measured{where}: {reason}."
        elif reason is not None and not set(formats) & set(FINER):
            yield "What the optimizer intended cannot be read from the stored weights: pass optimizer= to measure what rounding loses."
    if steps < _STEPS:
        return
    for kind in ("norm", "other trainable tensor"):
        alike = [part for part in trained if (part.role == "norm") == (kind == "norm")]
        for intended in (True, False, None):
            still = [part for part in alike if not part.moved and part.intended == intended]
            if still:
                unmoved = f"{len(still):,} of {plural(len(alike), kind)} have not moved in {steps:,} steps"
                yield f"{unmoved}, {quoted(still[0].name)} first: {_WHY[intended]}."
    if (look.total.swallowed_share or 0) >= _SWALLOWED:
        yield (
            f"bf16 swallows {percent(look.total.swallowed_share)} of the updates since step {look.start:,} of weights in a finer format: "
            "they exist in the stored weights, and a copy in bf16 would not have them."
        )


_WHY = {
    True: "every step rounds away",
    False: "nothing was intended: no gradient reaches them, or their learning rate is 0",
    None: "no gradient reaches them, their learning rate is 0, or every step rounds away",
}


def _loss(look: Look, dtype: torch.dtype, row: RoleLook) -> str:
    lost = f"{_FORMATS.get(dtype, str(dtype).removeprefix('torch.'))} lost {percent(row.lost_share)} of the updates"
    lost = f"At this step {lost}" if look.step - look.last == 1 else f"{lost} since step {look.last:,}"
    if row.values < look.total.values:
        lost += f", of the {row.values:,} of {look.total.values:,} compared values stored in it"
    return f"{lost}." if dtype in (torch.float32, torch.float64) else f"{lost}: keep fp32 master weights or use stochastic rounding."
