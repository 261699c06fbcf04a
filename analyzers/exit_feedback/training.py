"""Training curves: one small trunk from the same first weights on the same batches, under each signal.

The head learns by its exact gradient in any case: what differs is what the trunk is sent. AdamW divides each parameter's gradient by its
own running size, so that a signal that is right but for its scale is no worse for that.
"""

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from analyzers.exit_feedback.alignment import cosines, distribution, products
from analyzers.exit_feedback.heads import FeedbackHead, HeadSettings, build_head
from analyzers.exit_feedback.report import TrainingRow
from analyzers.exit_feedback.report import Trunk as TrunkFacts
from analyzers.exit_feedback.settings import Point
from analyzers.exit_feedback.trunk import BATCH, HEADS, LAYERS, LENGTH, WIDTH, Text, Trunk

EXACT, FROZEN = "exact", "frozen"
RATE = 3e-3
_WARMUP = 0.1
_POINTS = 20
_EVERY = 5  # steps from one progress to the next
_STD = 0.02


@dataclass(frozen=True, eq=False)
class Course:
    """What all signals have in common. Axes: B rows a batch, L tokens, d width, V vocabulary."""

    text: Text
    steps: int
    seed: int
    device: str

    @property
    def recorded(self) -> tuple[int, ...]:
        """Steps, from 0, at which losses and cosines are kept."""
        return tuple(sorted({round(step) for step in np.linspace(0, self.steps - 1, min(_POINTS, self.steps))}))

    def facts(self) -> TrunkFacts:
        """For the report."""
        trunk, head = self._start()
        return TrunkFacts(
            vocabulary=self.text.vocabulary,
            width=WIDTH,
            layers=LAYERS,
            heads=HEADS,
            parameters=sum(parameter.numel() for parameter in trunk.parameters()) + head.numel(),
            rows=len(self.text.rows),
            length=LENGTH,
            batch=self.batch,
            steps=self.steps,
            learning_rate=RATE,
        )

    @cached_property
    def first_loss(self) -> float | None:
        """Over all rows, before anything is learnt: the same for all."""
        trunk, weight = self._start()
        return self._loss(trunk, build_head(EXACT, weight), self.text.rows.to(self.device))

    @property
    def batch(self) -> int:
        """Rows of a batch."""
        return min(BATCH, len(self.text.rows))

    def progress(self) -> int:
        """How many steps of progress one training reports."""
        return 1 + math.ceil(self.steps / _EVERY)

    def train(self, point: Point) -> Generator[float | None, None, TrainingRow]:
        """Yields the loss now and then; returns the row, ``recovered`` left open. point: of "exact", "frozen", or a signal that fits."""
        trunk, weight = self._start()
        head = build_head(EXACT if point.method == FROZEN else point.head, nn.Parameter(weight), None, point.settings).to(self.device)
        rate = torch.optim.AdamW([*trunk.parameters(), *head.parameters()], lr=RATE, betas=(0.9, 0.95), weight_decay=0.0, foreach=False)
        rows = self.text.rows.to(self.device)
        losses: dict[int, float | None] = {}
        found: dict[int, float | None] = {}
        for step, chosen in zip(range(self.steps), self._batches(), strict=False):
            inputs, targets = rows[chosen, :-1], rows[chosen, 1:].flatten()
            for group in rate.param_groups:
                group["lr"] = RATE * min(1.0, (step + 1) / max(1.0, _WARMUP * self.steps))
            hidden = trunk(inputs).flatten(0, 1)
            loss = head.loss(hidden.detach() if point.method == FROZEN else hidden, targets)
            value = float(loss.detach())
            if step in self.recorded:
                losses[step] = value if math.isfinite(value) else None
                found[step] = None if point.method == FROZEN else _cosine(head, hidden.detach(), targets)
            if not math.isfinite(value):
                break
            rate.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            rate.step()
            if step % _EVERY == 0:
                yield value
        last = self._loss(trunk, head, rows)
        yield last
        return TrainingRow(
            method=point.method,
            settings={} if point.method in (EXACT, FROZEN) else point.used(),
            losses=tuple(losses.get(step) for step in self.recorded),
            cosines=tuple(found.get(step) for step in self.recorded),
            first_loss=self.first_loss,
            final_loss=last,
            recovered=None,
        )

    def _start(self) -> tuple[Trunk, Tensor]:
        """The first weights, the same whenever this is called."""
        with torch.random.fork_rng(devices=[]):  # what modules draw when they are made is overwritten
            trunk = Trunk(self.text.vocabulary, self.seed)
        generator = torch.Generator().manual_seed(self.seed + 1)
        weight = torch.empty(self.text.vocabulary, WIDTH).normal_(std=_STD, generator=generator)
        return trunk.to(self.device), weight.to(self.device)

    def _batches(self) -> Iterator[Tensor]:
        """Numbers of rows, every row once before any comes again."""
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            order = torch.randperm(len(self.text.rows), generator=generator)
            yield from (order[first : first + self.batch] for first in range(0, len(order) - self.batch + 1, self.batch))

    @torch.no_grad()
    def _loss(self, trunk: Trunk, head: FeedbackHead, rows: Tensor) -> float | None:
        """Mean cross-entropy over all rows, in nats; None where that is no number."""
        total = 0.0
        for part in torch.split(rows, 4 * self.batch):
            logits = head(trunk(part[:, :-1])).flatten(0, 1)
            total += float(cross_entropy(logits, part[:, 1:].flatten(), reduction="sum"))
        mean = total / (len(rows) * LENGTH)
        return mean if math.isfinite(mean) else None


@torch.no_grad()
def _cosine(head: FeedbackHead, hidden: Tensor, targets: Tensor) -> float | None:
    """Mean over tokens of the signal's cosine with the exact gradient, as the weights are now. hidden: (n, d)."""
    logits = head(hidden).float()
    gradient = torch.softmax(logits, -1)
    gradient[torch.arange(len(targets), device=targets.device), targets] -= 1
    exact = build_head(EXACT, head.weight.detach(), None, HeadSettings()).signal(hidden, gradient, targets)
    of_tokens = cosines(products(head.signal(hidden, gradient, targets), exact, hidden))
    found = distribution(of_tokens[~np.isnan(of_tokens)])
    return None if found is None or not math.isfinite(found.mean) else found.mean


def with_recovered(rows: list[TrainingRow]) -> tuple[TrainingRow, ...]:
    """Each with its share of what the trunk's learning brings; see `report.TrainingRow`."""
    finals = {row.method: row.final_loss for row in rows}
    exact, frozen = finals.get(EXACT), finals.get(FROZEN)
    if exact is None or frozen is None or frozen <= exact:
        return tuple(rows)

    def share(final: float | None) -> float | None:
        return None if final is None else (frozen - final) / (frozen - exact)

    return tuple(row.model_copy(update={"recovered": share(row.final_loss)}) for row in rows)
