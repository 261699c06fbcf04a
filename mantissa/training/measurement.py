"""Defines the measurements of a model at one step of its training."""

from collections.abc import Mapping

from analyzers.core.records import Record


class RoleLook(Record):
    """Measurements of the parameters of one role, or of all of them.

    values: number of compared values. changed, swallowed: since the start of the monitor; changed_since_last,
    swallowed_since_last: since the previous look. A value has changed if its rounding to bf16 (nearest even) has, with +0 = -0; an update
    is swallowed if the stored value differs and its rounding to bf16 does not. These are counts of the values watched.
    If nothing is stored in a format finer than bf16, the stored values do not show what bf16 swallowed, and the swallowed figures are null.
    *_share: share of the role's parameters, tensors weighted by their sizes; if sampled an estimate. swallowed_share: share of the
    values in finer formats whose stored value differs; null if none does. update_ratio: |w - w_last| / |w|, Frobenius norms; null if a norm
    is not finite or 0. unmoved: number of trainable tensors, out of ``trainable``, in which no compared value differs from its start.

    With s the stored values and m their shadow, in float64 under an optimizer of the same class, settings and gradients: followed: number
    of values whose m - m_last was measured and is finite. intended: number of these with m - m_last other than 0; null if none is followed.
    lost_share: share of the intended updates whose stored value did not change. lost_norm: |(m - m_last) - (s - s_last)| / |m - m_last|,
    above 1 if rounding adds more than it removes. drift: |s - m| / |m - m_start|. These three are also null if nothing was intended.
    """

    values: int
    changed: int
    swallowed: int | None
    changed_since_last: int
    swallowed_since_last: int | None
    changed_share: float | None
    changed_since_last_share: float | None
    swallowed_share: float | None
    update_ratio: float | None
    unmoved: int
    trainable: int
    followed: int
    intended: int | None
    lost_share: float | None
    lost_norm: float | None
    drift: float | None


class Look(Record):
    """One measurement of a model after ``step`` steps.

    start: the step at which the monitor was attached; last: the step of the previous look.

    sampled: whether shares are estimates from a sample. total: all trainable parameters; roles: trainable parameters by role, as `sparsity`
    names them, and ``lora_A``, ``lora_B`` and ``lora_magnitude`` of adapters; frozen: parameters that are not trainable, null if there are
    none. unmoved: names of trainable tensors that have not moved since the start, up to 100. messages: warnings and remarks, one sentence
    each.
    """

    step: int
    start: int
    last: int
    sampled: bool
    total: RoleLook
    roles: Mapping[str, RoleLook]
    frozen: RoleLook | None
    unmoved: tuple[str, ...]
    messages: tuple[str, ...]

    def metrics(self) -> dict[str, float]:
        """Return the figures of all trainable parameters for a logger, without null ones: ``mantissa/changed``, ``mantissa/drift``, ..."""
        row = self.total
        named = {
            "changed": row.changed_share,
            "changed_since_last": row.changed_since_last_share,
            "swallowed": row.swallowed_share,
            "update_ratio": row.update_ratio,
            "unmoved_tensors": float(row.unmoved),
            "intended": row.intended,
            "lost_share": row.lost_share,
            "lost_norm": row.lost_norm,
            "drift": row.drift,
        }
        return {f"mantissa/{name}": value for name, value in named.items() if value is not None}
