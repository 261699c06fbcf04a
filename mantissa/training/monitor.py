"""`UpdateMonitor`: looks at a model in training every so many steps, and never changes it."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch import distributed as dist

from analyzers.checkpoints.names import role
from analyzers.errors import InvalidRequest
from mantissa.training import parts
from mantissa.training.counting import CHANGED, CHANGED_LAST, SIZE, SWALLOWED, SWALLOWED_LAST, UPDATE, VALUES, WEIGHT, counts
from mantissa.training.look import Look, RoleLook
from mantissa.training.words import messages

_NAMED = 100  # unmoved tensors that a look names
_monitored: WeakSet[nn.Module] = WeakSet()


@dataclass(slots=True)
class _Watched:
    """A parameter as it was. role: see `names.role`. size: values held here. counted_here: by this process, of those that hold it.
    rows: the watched blocks, None for all of it. start, last: (n,) its watched values then.
    """

    role: str
    size: int
    counted_here: bool
    rows: Tensor | None
    start: Tensor
    last: Tensor


class UpdateMonitor:
    """Which weights the updates of a training run reach, as bf16 sees them.

        with UpdateMonitor(model, every=100, path="updates.jsonl") as monitor:
            for batch in batches:
                ...
                optimizer.step()
                monitor.step()

    Attach it when the model is on its device, and wrapped and sharded as it will be trained. Every process must attach one and call it at
    the same steps: each looks at what it holds, counts are summed over processes, and every process gets the same look.

    every: steps between looks. mode: "sampled" watches seeded blocks, ``share`` of each parameter of over 4,096 values, and all of the
    others, such as norms; "exact" watches everything. Memory: two copies of the watched values, on the parameters' device.
    step: the step at which it is attached, if not 0. path: append a line of JSON for each look (by the first process).
    Raises InvalidRequest for a model that has a monitor already, has no floating-point parameters, or is not loaded.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int = 100,
        mode: Literal["sampled", "exact"] = "sampled",
        share: float = 0.01,
        seed: int = 0,
        step: int = 0,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        if every < 1 or not 0 < share <= 1 or mode not in ("sampled", "exact"):
            raise InvalidRequest('A monitor looks every 1 or more steps, at a share above 0 and up to 1, in the mode "sampled" or "exact".')
        if model in _monitored:
            raise InvalidRequest("This model has a monitor already: close that one first.")
        self._model = model
        self._every = every
        self._share = share if mode == "sampled" else 1.0
        self._seed = seed
        self._path = Path(path) if path is not None else None
        self._start = self._last = self._step = step
        self._in_fsdp = parts.is_fsdp(model)
        self._watched = self._attach()
        if not self._watched:
            raise InvalidRequest("This model has no floating-point parameters to watch.")
        _monitored.add(model)

    def step(self) -> Look | None:
        """To be called after each step of the optimizer; looks when it is time, else returns None."""
        self._step += 1
        return self.look() if (self._step - self._start) % self._every == 0 else None

    @torch.no_grad()
    def look(self, step: int | None = None) -> Look:
        """Look now. step: how many steps were taken, where ``step()`` does not count them. Raises InvalidRequest for an unwritable path."""
        self._step = self._step if step is None else step
        held = {name: parts.held(name, each, self._in_fsdp) for name, each in parts.parameters(self._model)}
        known = [name for name in self._watched if self._fits(name, held)]
        watched = [self._watched[name] for name in known]
        now = [parts.watched(held[name].local, each.rows) for name, each in zip(known, watched, strict=True)]
        table = counts(now, [each.start for each in watched], [each.last for each in watched])
        table[:, SIZE] = torch.tensor([each.size for each in watched], dtype=torch.float64)
        table *= torch.tensor([[each.counted_here] for each in watched])
        table = _summed(table, watched[0].start.device)
        for each, values in zip(watched, now, strict=True):
            each.last = values.clone()
        trainable = [held[name].trainable for name in known]
        roles = [each.role for each in watched]
        unmoved = [train and not bool(row[CHANGED] + row[SWALLOWED]) for train, row in zip(trainable, table, strict=True)]
        look = Look(
            step=self._step,
            start=self._start,
            last=self._last,
            sampled=any(each.rows is not None for each in watched),
            total=_role(table, trainable, unmoved),
            roles={
                name: _role(table[rows], [trainable[row] for row in rows], [unmoved[row] for row in rows])
                for name in sorted(set(roles))
                if (rows := [row for row, each in enumerate(roles) if each == name])
            },
            unmoved=tuple(name for name, still in zip(known, unmoved, strict=True) if still)[:_NAMED],
            messages=(),
        )
        added, lost = [name for name in held if name not in self._watched], [name for name in self._watched if name not in known]
        norms = [
            (still, values.dtype, start.start)
            for still, values, start, train, kind in zip(unmoved, now, watched, trainable, roles, strict=True)
            if train and kind == "norm"
        ]
        look = look.model_copy(update={"messages": tuple(messages(look, norms, added, lost))})
        self._last = self._step
        self._write(look)
        return look

    def close(self) -> None:
        """Free the copies. The model may get another monitor. Idempotent."""
        _monitored.discard(self._model)
        self._watched = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @torch.no_grad()
    def _attach(self) -> dict[str, _Watched]:
        found: dict[str, _Watched] = {}
        rank, processes = (dist.get_rank(), dist.get_world_size()) if _distributed() else (0, 1)
        for index, (name, parameter) in enumerate(parts.parameters(self._model)):
            held = parts.held(name, parameter, self._in_fsdp)
            drawn = hashlib.sha256(f"{self._seed} {name} {rank if held.sharded else ''}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(drawn[:7], "little"))
            rows = parts.rows(held.local, parameter.ndim < 2 and not held.sharded, self._share, generator)
            start = parts.watched(held.local, rows).clone()
            # What every process holds is counted by one of them.
            here = held.sharded or index % processes == rank
            found[name] = _Watched(role(name), held.local.numel(), here, rows, start, start)
        return found

    def _fits(self, name: str, held: Mapping[str, parts.Held]) -> bool:
        """Whether a watched parameter is still what it was, in size and dtype."""
        watched = self._watched[name]
        return name in held and held[name].local.numel() == watched.size and held[name].local.dtype == watched.start.dtype

    def _write(self, look: Look) -> None:
        if self._path is None or (_distributed() and dist.get_rank()):
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(look.model_dump_json() + "\n")
        except OSError as error:
            raise InvalidRequest(f"The looks cannot be written to {self._path}: {error.strerror or 'the system refuses it'}.") from None


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _summed(table: Tensor, device: torch.device) -> Tensor:
    """The sum over all processes. device: of the parameters, which the processes exchange gradients from."""
    if not _distributed():
        return table
    total = table.to(device)
    dist.all_reduce(total)
    return total.cpu()


def _role(rows: Tensor, trainable: Sequence[bool], unmoved: Sequence[bool]) -> RoleLook:
    weights = torch.where(rows[:, VALUES] > 0, rows[:, SIZE] / rows[:, VALUES], 0.0)  # how many parameters a value of the sample stands for
    whole = float(rows[:, SIZE].sum())

    def share(column: int) -> float:
        return float((rows[:, column] * weights).sum()) / whole if whole else 0.0

    differing = share(CHANGED) + share(SWALLOWED)
    update, weight = (float((rows[:, column] * weights).sum().sqrt()) for column in (UPDATE, WEIGHT))
    ratio = update / weight if weight and torch.isfinite(torch.tensor([update, weight])).all() else None
    total = rows.sum(0)
    return RoleLook(
        values=int(total[VALUES]),
        changed=int(total[CHANGED]),
        swallowed=int(total[SWALLOWED]),
        changed_since_last=int(total[CHANGED_LAST]),
        swallowed_since_last=int(total[SWALLOWED_LAST]),
        changed_share=share(CHANGED),
        changed_since_last_share=share(CHANGED_LAST),
        swallowed_share=share(SWALLOWED) / differing if differing else None,
        update_ratio=ratio,
        unmoved=sum(unmoved),
        trainable=sum(trainable),
    )
