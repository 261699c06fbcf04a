"""`UpdateMonitor`: looks at a model in training every so many steps, and never changes it."""

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self
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
from mantissa.training.master_weights import given_masters, in_state
from mantissa.training.measurement import Look, RoleLook
from mantissa.training.sentences import Part, Remarks, messages
from mantissa.training.shadow import ELEMENTWISE, Followed, Shadow, unwrapped
from mantissa.training.update_counts import CHANGED, COLUMNS, FINER, FINER_VALUES, FOLLOWED, MOVED, SIZE, SWALLOWED, VALUES

_NAMED = 100  # unmoved tensors that a look names
_monitored: WeakSet[nn.Module] = WeakSet()
Floats = NDArray[np.float64]


@dataclass(slots=True)
class _Watched:
    """A parameter as it was. role: see `watched_values.role`. size: values held here. counted_here: by this process, of those that hold it.
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

        with UpdateMonitor(model, optimizer, every=100, path="updates.jsonl") as monitor:
            for batch in batches:
                ...
                optimizer.step()
                monitor.step()

    Attach it when the model is on its device, and wrapped and sharded as it will be trained. Every process must attach one and call it at
    the same steps: each looks at what it holds, counts are summed over processes, and every process gets the same look.

    optimizer: the optimizer, or several. Where it is one of `ELEMENTWISE`, a shadow of the watched values measures what it intended and
    what the stored weights lost of that; torch's hooks step the shadow, on the same gradients. Otherwise those figures are null.
    masters: fp32 weights that the optimizer steps in place of the model's parameters, by name or in the order of the trainable parameters.
    They are watched in place of the parameters. Those that the optimizer's state has by the name of master need not be passed.
    every: steps between looks. mode: "quick", formerly "sampled", watches seeded blocks, ``share`` of each parameter of over 4,096 values,
    and all of the others, such as norms; "exact" watches everything. Memory: two copies of the watched values, on the parameters' device; a
    shadow takes 16 bytes for each, three copies more, and the optimizer's state in float64.
    step: the step at which it is attached, if not 0. path: append a line of JSON for each look (by the first process).
    Raises InvalidRequest for a model that has a monitor already, has no floating-point parameters, or is not loaded, and for a path that
    cannot be written.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        *,
        masters: Mapping[str, Tensor] | Sequence[Tensor] | None = None,
        every: int = 100,
        mode: Literal["quick", "exact", "sampled"] = "quick",
        share: float = 0.01,
        seed: int = 0,
        step: int = 0,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidRequest(f"A monitor watches a module of torch, not a value of the type {type(model).__name__}.")
        if not isinstance(seed, int) or not isinstance(step, int):
            raise InvalidRequest("seed= and step= are whole numbers.")
        numbers = isinstance(every, int) and isinstance(share, int | float)
        if not numbers or every < 1 or not 0 < share <= 1 or mode not in ("quick", "exact", "sampled"):
            raise InvalidRequest('A monitor looks every 1 or more steps, at a share above 0 and up to 1, in the mode "quick" or "exact".')
        if model in _monitored:
            raise InvalidRequest("This model has a monitor already: close that one first.")
        self._model = model
        self._every = every
        self._share = 1.0 if mode == "exact" else share
        self._seed = seed
        self._path = Path(path) if path is not None else None
        self._check_path()
        self._start = self._last = self._step = step
        self._in_fsdp = watched_values.is_fsdp(model)
        optimizers = [] if optimizer is None else optimizer if isinstance(optimizer, Sequence) else [optimizer]
        self._optimizers: list[Any] = [unwrapped(each) for each in optimizers]
        if not all(hasattr(each, "param_groups") for each in self._optimizers):
            raise InvalidRequest("optimizer= takes an optimizer, or a list of several.")
        self._masters = given_masters(masters, model) if masters is not None else {}
        self._watched = self._attach()
        if not self._watched:
            raise InvalidRequest("This model has no floating-point parameters to watch.")
        rows = {each.source: self._watched[name].rows for name, each in self._held().items() if _is_whole(each)}
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
        values = [held[name].local for name in known]
        for shadow in self._shadows:
            shadow.follow()
        followed = [self._followed(held[name]) for name in known]
        table = self._table(watched, values, followed)
        for each, follow in zip(watched, followed, strict=True):
            if follow is not None:
                follow.stored, follow.last, follow.steps = each.last, follow.weight.clone(), 0
        trainable = [held[name].trainable for name in known]
        moved = (table[:, CHANGED] + table[:, SWALLOWED] > 0).tolist()
        unmoved = [train and not move for train, move in zip(trainable, moved, strict=True)]

        def figures(chosen: Sequence[int]) -> RoleLook:
            return _figures(table[chosen], [trainable[row] for row in chosen], [unmoved[row] for row in chosen])

        trained, frozen = ([row for row, train in enumerate(trainable) if train is wanted] for wanted in (True, False))
        look = Look(
            step=self._step,
            start=self._start,
            last=self._last,
            sampled=any(each.rows is not None for each in watched),
            total=figures(trained),
            roles={
                role: figures([row for row in trained if watched[row].role == role])
                for role in sorted({watched[row].role for row in trained})
            },
            frozen=figures(frozen) if frozen else None,
            unmoved=tuple(name for name, still in zip(known, unmoved, strict=True) if still)[:_NAMED],
            messages=(),
        )
        late = {tensor for shadow in self._shadows for tensor in shadow.late}
        parts = []
        for row, name in enumerate(known):
            is_known = followed[row] is not None and held[name].source not in late and not np.isnan(table[row, MOVED])
            parts.append(
                Part(
                    name=name,
                    norm=watched[row].role == "norm",
                    dtype=values[row].dtype,
                    start=watched[row].start,
                    trainable=trainable[row],
                    moved=moved[row],
                    intended=bool(table[row, MOVED] > 0) if is_known else None,
                    unfollowed=self._unfollowed(held[name]) if followed[row] is None else None,
                )
            )
        dtypes = dict.fromkeys(values[row].dtype for row in trained if followed[row] is not None or not self._optimizers)
        remarks = Remarks(
            parts=parts,
            added=[name for name in held if name not in self._watched],
            lost=[name for name in self._watched if name not in known],
            formats={dtype: figures([row for row in trained if values[row].dtype == dtype]) for dtype in dtypes},
            finer=int(table[trained, FINER_VALUES].sum()),
            late=len(late),
        )
        look = look.model_copy(update={"messages": tuple(messages(look, remarks))})
        self._last = self._step
        self._write(look)
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
    def _attach(self) -> dict[str, _Watched]:
        found: dict[str, _Watched] = {}
        rank, processes = (dist.get_rank(), dist.get_world_size()) if _distributed() else (0, 1)
        for index, (name, held) in enumerate(self._held().items()):
            drawn = hashlib.sha256(f"{self._seed} {name} {rank if held.sharded else ''}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(drawn[:7], "little"))
            rows = watched_values.rows(held.local, held.source.ndim < 2 and not held.sharded, self._share, generator)
            start = watched_values.watched_values(held.local, rows)
            # What every process holds is counted by one of them.
            here = held.sharded or index % processes == rank
            found[name] = _Watched(watched_values.role(name), held.local.numel(), here, rows, start.clone(), start.clone())
        return found

    def _held(self) -> dict[str, watched_values.WatchedPart]:
        """The part of each parameter, or of its master weights, that this process holds."""
        held = {}
        for name, parameter in watched_values.parameters(self._model):
            held[name] = watched_values.watched_part(name, parameter, self._in_fsdp)
            if name in self._masters:
                held[name] = held[name]._replace(source=self._masters[name], local=self._masters[name].detach().reshape(-1))
            elif (master := in_state(parameter, self._optimizers)) is not None:
                held[name] = held[name]._replace(local=master.detach().reshape(-1))
        return held

    def _fits(self, name: str, held: Mapping[str, watched_values.WatchedPart]) -> bool:
        """Return whether a watched parameter is still what it was, in size, dtype and device, but for a master that came since."""
        watched = self._watched[name]
        if name not in held or held[name].local.numel() != watched.size:
            return False
        if self._optimizers and in_state(held[name].source, self._optimizers) is not None:
            watched.start, watched.last = (each.to(held[name].local.dtype) for each in (watched.start, watched.last))
        return (held[name].local.dtype, held[name].local.device) == (watched.start.dtype, watched.start.device)

    def _followed(self, held: watched_values.WatchedPart) -> Followed | None:
        """The shadow of a parameter, if it was stepped since the last look."""
        if not self._shadows:
            return None
        shadows = (shadow.followed.get(held.source) for shadow in self._shadows)
        return next((each for each in shadows if each is not None and each.steps), None)

    def _unfollowed(self, held: watched_values.WatchedPart) -> str:
        """Return why a parameter has no shadow, "" without an optimizer."""
        holders = [each for each in self._optimizers if any(tensor is held.source for tensor in watched_values.stepped(each))]
        if not self._optimizers:
            return ""
        if not holders:
            return "the optimizer does not hold these parameters (name fp32 master weights with masters=)"
        kind = type(holders[0])
        if kind not in ELEMENTWISE:
            names = [each.__name__ for each in ELEMENTWISE]
            return f"{kind.__module__}.{kind.__name__} is not followed (only {', '.join(names[:-1])} and {names[-1]} are)"
        if not _is_whole(held):
            return "the values are distributed over processes"
        if any(held.source in shadow.sparse for shadow in self._shadows):
            return "the gradients are sparse"
        return "since the last look the optimizer took no step, or weights or states were written after its last one"

    def _table(self, watched: Sequence[_Watched], values: Sequence[Tensor], followed: Sequence[Followed | None]) -> Floats:
        """(tensors, `COLUMNS`) counts and sums over all processes."""
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
        table *= torch.tensor([each.counted_here for each in watched]).reshape(-1, 1)
        return _summed(table, next(iter(self._watched.values())).start.device).numpy()

    def _check_path(self) -> None:
        """Raise InvalidRequest for a path that cannot be written, before training: at the first look it would end a long run."""
        if self._path is None or self._path.is_fifo() or (_distributed() and dist.get_rank()):
            return
        try:
            self._path.open("a").close()
        except OSError as error:
            raise _unwritable(self._path, error) from None

    def _write(self, look: Look) -> None:
        if self._path is None or (_distributed() and dist.get_rank()):
            return
        try:
            append_line(self._path, look.model_dump_json())
        except OSError as error:
            raise _unwritable(self._path, error) from None


def _unwritable(path: Path, error: OSError) -> InvalidRequest:
    return InvalidRequest(f"The looks cannot be written to {path}: {error.strerror or 'the system refuses it'}.")


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _summed(table: Tensor, device: torch.device) -> Tensor:
    """The sum over all processes. device: of the parameters, which the processes exchange gradients from."""
    if not _distributed():
        return table
    total = table.to(device)
    dist.all_reduce(total)
    return total.cpu()


def _is_whole(held: watched_values.WatchedPart) -> bool:
    return not held.sharded and not hasattr(held.source, "to_local")


def _figures(rows: Floats, trainable: Sequence[bool], unmoved: Sequence[bool]) -> RoleLook:
    weights = rows[:, SIZE] / np.where(rows[:, VALUES] > 0, rows[:, VALUES], np.inf)  # how many parameters a value of the sample stands for
    columns = dict(zip(COLUMNS, (rows * weights[:, None]).sum(0).tolist(), strict=True))  # of all parameters, estimated
    counts = dict(zip(COLUMNS, rows.sum(0).tolist(), strict=True))
    finer = rows[:, FINER_VALUES] > 0
    differing = float(((rows[:, CHANGED] + rows[:, SWALLOWED]) * weights)[finer].sum())

    def norms(part: str, whole: str) -> float | None:
        return _ratio(math.sqrt(columns[part]), math.sqrt(columns[whole]))

    return RoleLook(
        values=int(counts["values"]),
        changed=int(counts["changed"]),
        swallowed=int(counts["swallowed"]) if finer.any() else None,
        changed_since_last=int(counts["changed_since_last"]),
        swallowed_since_last=int(counts["swallowed_since_last"]) if finer.any() else None,
        changed_share=_ratio(columns["changed"], columns["values"]),
        changed_since_last_share=_ratio(columns["changed_since_last"], columns["values"]),
        swallowed_share=_ratio(columns["swallowed"], differing),
        update_ratio=norms("update_squares", "weight_squares"),
        unmoved=sum(unmoved),
        trainable=sum(trainable),
        followed=int(counts["followed"]),
        intended=int(counts["intended"]) if counts["followed"] else None,
        lost_share=_ratio(columns["lost"], columns["intended"]),
        lost_norm=norms("missing_squares", "intended_squares"),
        drift=norms("drift_squares", "moved_squares"),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole and math.isfinite(part) and math.isfinite(whole) else None
