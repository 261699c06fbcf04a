"""`UpdateMonitor`: looks at a model in training every so many steps, and never changes it."""

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from analyzers.core.atomic_files import append_line
from analyzers.core.errors import InvalidRequest
from mantissa.training import update_counts, watched_values
from mantissa.training.measurement import Look, RoleLook
from mantissa.training.sentences import Part, messages
from mantissa.training.shadow import ELEMENTWISE, Followed, Shadow, unwrapped
from mantissa.training.update_counts import CHANGED, COLUMNS, FINER, FINER_VALUES, FOLLOWED, MOVED, SIZE, SWALLOWED, VALUES
from mantissa.training.watched_values import HeldPart

_NAMED = 100  # unmoved tensors that a look names
_monitored: WeakSet[nn.Module] = WeakSet()
Floats = NDArray[np.float64]


@dataclass(slots=True)
class _Watched:
    """A parameter as it was. role: see `watched_values.role`. rows: the watched blocks, None for all of it. start, last: (n,) its watched
    values then.
    """

    role: str
    size: int
    rows: Tensor | None
    start: Tensor
    last: Tensor


class UpdateMonitor:
    """Which weights the updates of a training run reach, as bf16 sees them.

        with UpdateMonitor(model, optimizer, every=100, path="updates.jsonl") as monitor:
            for batch in batches:
                ...
                optimizer.step()
                monitor.step()

    Attach it when the model is on its device, and wrapped as it will be trained. Parameters that are sharded over processes cannot be
    watched; in DistributedDataParallel all processes see the same, and the first one writes.

    optimizer: the optimizer, or several. Where it is one of `ELEMENTWISE`, a shadow of the watched values measures what it intended and
    what the stored weights lost of that; torch's hooks step the shadow, on the same gradients. Otherwise those figures are null.
    masters: fp32 weights that the optimizer steps in place of the model's parameters, by name or in the order of the trainable parameters.
    They are watched in place of the parameters. Those that the optimizer's state has by the name of master need not be passed.
    every: steps between looks. share: of the values of each parameter of over 4,096 that are watched, in seeded blocks; all of the others,
    such as norms, are watched, and with a share of 1 everything is. Memory: two copies of the watched values, on the parameters' device; a
    shadow takes 16 bytes for each, three copies more, and the optimizer's state in float64.
    step: the step at which it is attached, if not 0. path: append a line of JSON for each look.
    Raises InvalidRequest for a model that has a monitor already, has no floating-point parameters, is not loaded or sharded, and for a path
    that cannot be written.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        *,
        masters: Mapping[str, Tensor] | Sequence[Tensor] | None = None,
        every: int = 100,
        share: float = 0.01,
        step: int = 0,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidRequest(f"A monitor watches a module of torch, not a value of the type {type(model).__name__}.")
        if not isinstance(every, int) or every < 1 or not isinstance(share, int | float) or not 0 < share <= 1:
            raise InvalidRequest("A monitor looks every 1 or more steps, at a share above 0 and up to 1.")
        if model in _monitored:
            raise InvalidRequest("This model has a monitor already: close that one first.")
        self._model, self._every, self._share = model, every, share
        # the other processes of DistributedDataParallel see the same
        first = not (dist.is_available() and dist.is_initialized() and dist.get_rank())
        self._path = Path(path) if path is not None and first else None
        if self._path is not None and not self._path.is_fifo():  # at the first look it would end a long run
            self._written(lambda file: file.open("a").close())
        self._start = self._last = self._step = step
        optimizers = [] if optimizer is None else optimizer if isinstance(optimizer, Sequence) else [optimizer]
        self._optimizers: list[Any] = [unwrapped(each) for each in optimizers]
        if not all(hasattr(each, "param_groups") for each in self._optimizers):
            raise InvalidRequest("optimizer= takes an optimizer, or a list of several.")
        self._masters = watched_values.given_masters(masters, model) if masters is not None else {}
        held = self._held()
        self._watched = {name: self._attached(name, each) for name, each in held.items()}
        if not self._watched:
            raise InvalidRequest("This model has no floating-point parameters to watch.")
        rows = {each.source: self._watched[name].rows for name, each in held.items()}
        self._shadows = [Shadow(each, rows) for each in self._optimizers if type(each) in ELEMENTWISE]
        _monitored.add(model)

    def step(self) -> Look | None:
        """Count a step of the optimizer, after it; returns a measurement at every ``every``-th step, else None."""
        self._step += 1
        return self.look() if (self._step - self._start) % self._every == 0 else None

    @torch.no_grad()
    def look(self, step: int | None = None) -> Look:
        """Look now. step: how many steps were taken, where ``step()`` does not count them. Raises InvalidRequest for an unwritable path."""
        self._step = self._step if step is None else step
        held = self._held()
        known = [name for name in self._watched if self._fits(name, held)]
        watched = [self._watched[name] for name in known]
        for shadow in self._shadows:
            shadow.follow()
        followed = [self._followed(held[name]) for name in known]
        table = self._table(watched, [held[name].local for name in known], followed)
        for each, follow in zip(watched, followed, strict=True):
            if follow is not None:
                follow.stored, follow.last, follow.steps = each.last, follow.weight.clone(), 0
        late = {tensor for shadow in self._shadows for tensor in shadow.late}
        parts = []
        for row, name in enumerate(known):
            is_known = followed[row] is not None and held[name].source not in late and not np.isnan(table[row, MOVED])
            parts.append(
                Part(
                    name=name,
                    role=watched[row].role,
                    dtype=held[name].local.dtype,
                    trainable=held[name].trainable,
                    moved=bool(table[row, CHANGED] + table[row, SWALLOWED] > 0),
                    intended=bool(table[row, MOVED] > 0) if is_known else None,
                    unfollowed=None if followed[row] is not None else self._unfollowed(held[name]),
                )
            )

        def figures(chosen: Callable[[Part], bool]) -> RoleLook:
            rows = [row for row, part in enumerate(parts) if chosen(part)]
            return _figures(table[rows], [parts[row] for row in rows])

        trained = [part for part in parts if part.trainable]
        look = Look(
            step=self._step,
            start=self._start,
            last=self._last,
            sampled=any(each.rows is not None for each in watched),
            total=figures(lambda part: part.trainable),
            roles={
                role: figures(lambda part, role=role: part.trainable and part.role == role)  # type: ignore[misc]
                for role in sorted({part.role for part in trained})
            },
            frozen=figures(lambda part: not part.trainable) if len(trained) < len(parts) else None,
            unmoved=tuple(part.name for part in trained if not part.moved)[:_NAMED],
            messages=(),
        )
        formats = {
            dtype: figures(lambda part, dtype=dtype: part.trainable and part.dtype == dtype)  # type: ignore[misc]
            for dtype in dict.fromkeys(part.dtype for part in trained if part.unfollowed is None or not self._optimizers)
        }
        gone = [name for name in self._watched if name not in known] + [name for name in held if name not in self._watched]
        look = look.model_copy(update={"messages": tuple(messages(look, parts, gone, formats, len(late)))})
        self._last = self._step
        if self._path is not None:
            self._written(lambda file: append_line(file, look.model_dump_json()))
        return look

    def close(self) -> None:
        """Free the copies. The model may get another monitor. Idempotent."""
        _monitored.discard(self._model)
        self._watched = {}
        for shadow in self._shadows:
            shadow.close()
        self._shadows = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @torch.no_grad()
    def _attached(self, name: str, held: HeldPart) -> _Watched:
        generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little"))
        rows = watched_values.rows(held.local, held.source.ndim < 2, self._share, generator)
        start = watched_values.watched_values(held.local, rows)
        return _Watched(watched_values.role(name), held.local.numel(), rows, start.clone(), start.clone())

    def _held(self) -> dict[str, HeldPart]:
        """The values of each parameter, or of its master weights."""
        held = {}
        for name, parameter in watched_values.parameters(self._model):
            source = self._masters.get(name, parameter)
            master = watched_values.master_in_state(parameter, self._optimizers) if source is parameter else None
            held[name] = HeldPart(source, (source if master is None else master).detach().reshape(-1), parameter.requires_grad)
        return held

    def _fits(self, name: str, held: Mapping[str, HeldPart]) -> bool:
        """Return whether a watched parameter is still what it was, in size, dtype and device, but for a master that came since."""
        watched = self._watched[name]
        if name not in held or held[name].local.numel() != watched.size:
            return False
        if self._optimizers and watched_values.master_in_state(held[name].source, self._optimizers) is not None:
            watched.start, watched.last = (each.to(held[name].local.dtype) for each in (watched.start, watched.last))
        return (held[name].local.dtype, held[name].local.device) == (watched.start.dtype, watched.start.device)

    def _followed(self, held: HeldPart) -> Followed | None:
        """The shadow of a parameter, if it was stepped since the last look."""
        shadows = (shadow.followed.get(held.source) for shadow in self._shadows)
        return next((each for each in shadows if each is not None and each.steps), None)

    def _unfollowed(self, held: HeldPart) -> str:
        """Return why a parameter has no shadow, "" without an optimizer."""
        holders = [each for each in self._optimizers if any(tensor is held.source for tensor in watched_values.stepped(each))]
        if not self._optimizers:
            return ""
        if not holders:
            return "the optimizer does not hold these parameters (name fp32 master weights with masters=)"
        kind = type(holders[0])
        if kind not in ELEMENTWISE:
            return f"{kind.__module__}.{kind.__name__} is not followed (only {', '.join(each.__name__ for each in ELEMENTWISE)} are)"
        if any(held.source in shadow.sparse for shadow in self._shadows):
            return "the gradients are sparse"
        return "since the last look the optimizer took no step, or weights or states were written after its last one"

    def _table(self, watched: Sequence[_Watched], values: Sequence[Tensor], followed: Sequence[Followed | None]) -> Floats:
        """(tensors, `COLUMNS`) counts and sums."""
        table = torch.zeros(len(watched), len(COLUMNS), dtype=torch.float64)
        table[:, SIZE] = torch.tensor([each.size for each in watched], dtype=torch.float64)
        table[:, VALUES] = torch.tensor([each.start.numel() for each in watched], dtype=torch.float64)
        table[:, FINER_VALUES] = table[:, VALUES] * torch.tensor([each.start.dtype in FINER for each in watched])
        now = [watched_values.watched_values(local, each.rows) for local, each in zip(values, watched, strict=True)]
        start, last = ([getattr(each, side) for each in watched] for side in ("start", "last"))
        table[:, CHANGED:FOLLOWED] = update_counts.changes(now, start, last)
        pairs = [(row, each) for row, each in enumerate(followed) if each is not None]
        sides = [[getattr(each, side) for _, each in pairs] for side in ("stored", "weight", "last", "start")]
        table[[row for row, _ in pairs], FOLLOWED:] = update_counts.losses([now[row] for row, _ in pairs], *sides)
        if now:  # the last values are also those of the shadows
            torch._foreach_copy_(last, now)
        return table.numpy()

    def _written(self, write: Callable[[Path], None]) -> None:
        """Write to the path. Raises InvalidRequest."""
        assert self._path is not None
        try:
            write(self._path)
        except OSError as error:
            reason = error.strerror or "the system refuses it"
            raise InvalidRequest(f"The looks cannot be written to {self._path}: {reason}.") from None


def _figures(rows: Floats, parts: Sequence[Part]) -> RoleLook:
    weights = rows[:, SIZE] / np.where(rows[:, VALUES] > 0, rows[:, VALUES], np.inf)  # how many parameters a value of the sample stands for
    columns = dict(zip(COLUMNS, (rows * weights[:, None]).sum(0).tolist(), strict=True))  # of all parameters, estimated
    counts = {name: int(value) for name, value in zip(COLUMNS, np.nan_to_num(rows).sum(0).tolist(), strict=True)}
    finer = rows[:, FINER_VALUES] > 0
    differing = float(((rows[:, CHANGED] + rows[:, SWALLOWED]) * weights)[finer].sum())

    def norms(part: str, whole: str) -> float | None:
        return _ratio(math.sqrt(columns[part]), math.sqrt(columns[whole]))

    return RoleLook(
        values=counts["values"],
        changed=counts["changed"],
        changed_since_last=counts["changed_since_last"],
        swallowed=counts["swallowed"] if finer.any() else None,
        swallowed_since_last=counts["swallowed_since_last"] if finer.any() else None,
        followed=counts["followed"],
        intended=counts["intended"] if counts["followed"] else None,
        changed_share=_ratio(columns["changed"], columns["values"]),
        changed_since_last_share=_ratio(columns["changed_since_last"], columns["values"]),
        swallowed_share=_ratio(columns["swallowed"], differing),
        update_ratio=norms("update_squares", "weight_squares"),
        unmoved=sum(part.trainable and not part.moved for part in parts),
        trainable=sum(part.trainable for part in parts),
        lost_share=_ratio(columns["lost"], columns["intended"]),
        lost_norm=norms("missing_squares", "intended_squares"),
        drift=norms("drift_squares", "moved_squares"),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole and math.isfinite(part) and math.isfinite(whole) else None
