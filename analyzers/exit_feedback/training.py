"""Training curves: one small transformer from the same initial weights on the same batches, under each signal.

The head always learns by its exact gradient; only the feedback to the layers below differs. AdamW divides each parameter's gradient by its
running RMS, so that a signal with the wrong scale has no disadvantage.
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
from analyzers.exit_feedback.points import Point
from analyzers.exit_feedback.results import TrainingRow
from analyzers.exit_feedback.results import Trunk as TrunkFacts
from analyzers.exit_feedback.signals import EXACT, FROZEN
from analyzers.exit_feedback.trunk import BATCH, HEADS, LAYERS, LENGTH, STD, WIDTH, Text, Trunk

RATE = 3e-3
_WARMUP = 0.1
_POINTS = 20
_EVERY = 5  # steps from one progress to the next


@dataclass(frozen=True, eq=False)
class Course:
    """The training run that is repeated for each signal."""

    text: Text
    steps: int
    seed: int
    device: str

    @property
    def recorded(self) -> tuple[int, ...]:
        """Steps, from 0, at which losses and cosines are recorded."""
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
        """Over all rows, before training."""
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
        """Yields the loss every few steps; returns the row without ``recovered``. point: of "exact", "frozen", or a signal that fits."""
        trunk, weight = self._start()
        head = build_head(EXACT if point.method == FROZEN else point.head, nn.Parameter(weight), None, point.settings).to(self.device)
        optimizer = torch.optim.AdamW(
            [*trunk.parameters(), *head.parameters()], lr=RATE, betas=(0.9, 0.95), weight_decay=0.0, foreach=False
        )
        rows = self.text.rows.to(self.device)
        losses: dict[int, float | None] = {}
        of_steps: dict[int, float | None] = {}
        for step, chosen in zip(range(self.steps), self._batches(), strict=False):
            inputs, targets = rows[chosen, :-1], rows[chosen, 1:].flatten()
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, (step + 1) / max(1.0, _WARMUP * self.steps))
            hidden = trunk(inputs).flatten(0, 1)
            loss = head.loss(hidden.detach() if point.method == FROZEN else hidden, targets)
            value = float(loss.detach())
            if step in self.recorded:
                losses[step] = value if math.isfinite(value) else None
                of_steps[step] = None if point.method == FROZEN else _cosine(head, hidden.detach(), targets)
            if not math.isfinite(value):
                break
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            if step % _EVERY == 0:
                yield value
        last = self._loss(trunk, head, rows)
        yield last
        return TrainingRow(
            method=point.method,
            settings={} if point.method in (EXACT, FROZEN) else point.used(),
            losses=tuple(losses.get(step) for step in self.recorded),
            cosines=tuple(of_steps.get(step) for step in self.recorded),
            first_loss=self.first_loss,
            final_loss=last,
            recovered=None,
        )

    def _start(self) -> tuple[Trunk, Tensor]:
        """The initial weights, always the same."""
        with torch.random.fork_rng(devices=[]):  # their own initial values are overwritten
            trunk = Trunk(self.text.vocabulary, self.seed)
        generator = torch.Generator().manual_seed(self.seed + 1)
        weight = torch.empty(self.text.vocabulary, WIDTH).normal_(std=STD, generator=generator)
        return trunk.to(self.device), weight.to(self.device)

    def _batches(self) -> Iterator[Tensor]:
        """Indices of rows; an epoch uses every row at most once."""
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            order = torch.randperm(len(self.text.rows), generator=generator)
            yield from (order[first : first + self.batch] for first in range(0, len(order) - self.batch + 1, self.batch))

    @torch.no_grad()
    def _loss(self, trunk: Trunk, head: FeedbackHead, rows: Tensor) -> float | None:
        """Mean cross-entropy over all rows, in nats; None where it is not finite."""
        total = 0.0
        for part in torch.split(rows, 4 * self.batch):
            logits = head(trunk(part[:, :-1])).flatten(0, 1)
            total += float(cross_entropy(logits, part[:, 1:].flatten(), reduction="sum"))
        mean = total / (len(rows) * LENGTH)
        return mean if math.isfinite(mean) else None


@torch.no_grad()
def _cosine(head: FeedbackHead, hidden: Tensor, targets: Tensor) -> float | None:
    """Mean over tokens of the signal's cosine with the exact gradient at the current weights. hidden: (n, d)."""
    logits = head(hidden).float()
    gradient = torch.softmax(logits, -1)
    gradient[torch.arange(len(targets), device=targets.device), targets] -= 1
    exact = build_head(EXACT, head.weight.detach(), None, HeadSettings()).signal(hidden, gradient, targets)
    of_tokens = cosines(products(head.signal(hidden, gradient, targets), exact, hidden))
    over_tokens = distribution(of_tokens[~np.isnan(of_tokens)])
    return None if over_tokens is None or not math.isfinite(over_tokens.mean) else over_tokens.mean


def with_recovered(rows: list[TrainingRow]) -> tuple[TrainingRow, ...]:
    """Each with its ``recovered``; see `report.TrainingRow`."""
    finals = {row.method: row.final_loss for row in rows}
    exact, frozen = finals.get(EXACT), finals.get(FROZEN)
    if exact is None or frozen is None or frozen <= exact:
        return tuple(rows)

    def share(final: float | None) -> float | None:
        return None if final is None else (frozen - final) / (frozen - exact)

    return tuple(row.model_copy(update={"recovered": share(row.final_loss)}) for row in rows)
