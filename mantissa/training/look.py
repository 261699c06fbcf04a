"""What one look at a model in training found."""

from collections.abc import Mapping

from analyzers.base import Data


class RoleLook(Data):
    """The parameters of one role, or all of them.

    values: how many were compared, over all processes. changed, swallowed: since the start of the monitor; changed_since_last,
    swallowed_since_last: since the look before. A value has changed where bf16 of it (nearest even) has, +0 = -0; an update is swallowed
    where the stored value differs and bf16 of it does not. Counts of values, in sampled mode of sampled ones.
    *_share: of the role's parameters, tensors weighted by their sizes; in sampled mode an estimate. swallowed_share: of the values whose
    stored value differs; null where none does. update_ratio: |w - w_last| / |w|, Frobenius norms; null where a norm is not finite or 0.
    unmoved: trainable tensors of which no compared value differs from its start, of ``trainable`` in all.
    """

    values: int
    changed: int
    swallowed: int
    changed_since_last: int
    swallowed_since_last: int
    changed_share: float
    changed_since_last_share: float
    swallowed_share: float | None
    update_ratio: float | None
    unmoved: int
    trainable: int


class Look(Data):
    """A look after ``step`` steps. start: the step at which the monitor was attached; last: that of the look before.

    sampled: whether shares are estimates from a sample. total: all parameters; roles: by role, as `sparsity` names them. unmoved: names of
    trainable tensors that did not move since the start, up to 100. messages: warnings and remarks, one sentence each.
    """

    step: int
    start: int
    last: int
    sampled: bool
    total: RoleLook
    roles: Mapping[str, RoleLook]
    unmoved: tuple[str, ...]
    messages: tuple[str, ...]

    def metrics(self, prefix: str = "mantissa/") -> dict[str, float]:
        """Plain numbers for a logger: ``mantissa/changed``, ``mantissa/attention/changed``, ... (shares, ratios and counts of tensors)."""
        rows = {"": self.total} | {f"{role}/": row for role, row in self.roles.items()}
        named = {
            f"{prefix}{role}{name}": value
            for role, row in rows.items()
            for name, value in (
                ("changed", row.changed_share),
                ("changed_since_last", row.changed_since_last_share),
                ("swallowed", row.swallowed_share),
                ("update_ratio", row.update_ratio),
                ("unmoved_tensors", float(row.unmoved)),
            )
        }
        return {name: value for name, value in named.items() if value is not None}
