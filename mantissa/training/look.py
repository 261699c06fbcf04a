"""The measurements of a model at one step of its training."""

from collections.abc import Mapping

from analyzers.data import Data


class RoleLook(Data):
    """Measurements of the parameters of one role, or of all of them.

    values: how many were compared, over all processes. changed, swallowed: since the start of the monitor; changed_since_last,
    swallowed_since_last: since the look before. A value has changed where bf16 of it (nearest even) has, +0 = -0; an update is swallowed
    where the stored value differs and bf16 of it does not. Counts of values, in quick mode of sampled ones. Where nothing is stored in a
    format finer than bf16 the stored values do not show what bf16 swallowed, and the swallowed figures are null.
    *_share: of the role's parameters, tensors weighted by their sizes; in quick mode an estimate. swallowed_share: of the values in finer
    formats whose stored value differs; null where none does. update_ratio: |w - w_last| / |w|, Frobenius norms; null where a norm is not
    finite or 0. unmoved: trainable tensors of which no compared value differs from its start, of ``trainable`` in all.

    With s the stored values and m their shadow, in float64 under an optimizer of the same class, settings and gradients:
    followed: values whose m - m_last was measured and is finite. intended: of these, how many m - m_last is not 0 for; null where there are
    none. lost_share: the share of those whose stored value did not change. lost_norm: |(m - m_last) - (s - s_last)| / |m - m_last|, above 1
    where rounding adds more than it takes. drift: |s - m| / |m - m_start|. These three are also null where nothing was intended.
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


class Look(Data):
    """A look after ``step`` steps. start: the step at which the monitor was attached; last: that of the look before.

    sampled: whether shares are estimates from a sample. total: all trainable parameters; roles: these by role, as `sparsity` names them,
    and ``lora_A``, ``lora_B`` and ``lora_magnitude`` of adapters; frozen: those that are not trainable, null where there are none.
    unmoved: names of trainable tensors that did not move since the start, up to 100. messages: warnings and remarks, one sentence each.
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

    def metrics(self, prefix: str = "mantissa/", by_role: bool = False) -> dict[str, float]:
        """Plain numbers for a logger, without those that are null: ``mantissa/changed``, ``mantissa/lost_share``, ...

        Of all trainable parameters; by_role: also of each role, ``mantissa/attention/changed``, ...
        """
        rows = {"": self.total} | ({f"{role}/": row for role, row in self.roles.items()} if by_role else {})
        named = {
            f"{prefix}{role}{name}": value
            for role, row in rows.items()
            for name, value in (
                ("changed", row.changed_share),
                ("changed_since_last", row.changed_since_last_share),
                ("swallowed", row.swallowed_share),
                ("update_ratio", row.update_ratio),
                ("unmoved_tensors", float(row.unmoved)),
                ("intended", row.intended),
                ("lost_share", row.lost_share),
                ("lost_norm", row.lost_norm),
                ("drift", row.drift),
            )
        }
        return {name: value for name, value in named.items() if value is not None}
