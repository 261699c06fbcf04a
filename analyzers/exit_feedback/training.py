"""Training curves: one small transformer from the same initial weights on the same batches, under each signal.

The head always learns by its exact gradient; only the feedback to the layers below differs. AdamW divides each parameter's gradient by its
running RMS, so that a signal with the wrong scale has no disadvantage.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from analyzers.exit_feedback.alignment import cosines, distribution, products
from analyzers.exit_feedback.heads import FeedbackHead, HeadSettings, build_head
from analyzers.exit_feedback.points import Point
from analyzers.exit_feedback.results import TrainingRow, TrainingRun
from analyzers.exit_feedback.results import Trunk as TrunkFacts
from analyzers.exit_feedback.signals import EXACT, FROZEN
from analyzers.exit_feedback.trunk import BATCH, HEADS, LAYERS, LENGTH, STD, WIDTH, Text, Trunk

RATE = 3e-3
_WARMUP = 0.1
_POINTS = 9  # of a curve; each evaluates the whole text
_EVERY = 5  # steps from one progress to the next


@dataclass(frozen=True, eq=False)
class Course:
    """The training that is repeated for each signal. seed: of weights and batches."""

    text: Text
    steps: int
    seed: int
    device: str

    @property
    def recorded(self) -> tuple[int, ...]:
        """Numbers of updates, 0 and all of them included, after which losses and cosines are recorded."""
        return tuple(round(step) for step in np.linspace(0, self.steps, min(_POINTS, self.steps + 1)))

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

    @property
    def batch(self) -> int:
        """Rows of a batch."""
        return min(BATCH, len(self.text.rows))

    def progress(self) -> int:
        """The most steps of progress that one training reports."""
        return 1 + math.ceil(self.steps / _EVERY)

    def train(self, point: Point) -> Iterator[float | TrainingRun | None]:
        """Yields the batch loss every few steps, and last the run without ``recovered``. point: exact, frozen, or a signal that fits."""
        trunk, weight = self._start()
        frozen = point.method == FROZEN
        head = build_head(EXACT if frozen else point.head, nn.Parameter(weight), None, point.settings).to(self.device)
        optimizer = torch.optim.AdamW(
            [*trunk.parameters(), *head.parameters()], lr=RATE, betas=(0.9, 0.95), weight_decay=0.0, foreach=False
        )
        rows = self.text.rows.to(self.device)
        losses, of_steps = dict[int, float | None](), dict[int, float | None]()
        for step, chosen in zip(range(self.steps + 1), self._batches(), strict=False):
            inputs, targets = rows[chosen, :-1], rows[chosen, 1:].flatten()
            if step in self.recorded:
                losses[step] = self._evaluation_loss(trunk, head)
                with torch.no_grad():
                    of_steps[step] = None if frozen else _cosine(head, trunk(inputs).flatten(0, 1), targets)
            if step == self.steps:
                break
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, (step + 1) / max(1.0, _WARMUP * self.steps))
            hidden = trunk(inputs).flatten(0, 1)
            loss = head.loss(hidden.detach() if frozen else hidden, targets)
            value = float(loss.detach())
            if not math.isfinite(value):
                break
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            if step % _EVERY == 0:
                yield value
        recorded = [(losses.get(step), of_steps.get(step)) for step in self.recorded]
        yield TrainingRun(
            seed=self.seed, losses=tuple(loss for loss, _ in recorded), cosines=tuple(cosine for _, cosine in recorded), recovered=None
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
    def _evaluation_loss(self, trunk: Trunk, head: FeedbackHead) -> float | None:
        """Mean cross-entropy over all rows, in nats; None where it is not finite."""
        total = 0.0
        for part in torch.split(self.text.rows.to(self.device), 4 * self.batch):
            logits = head(trunk(part[:, :-1])).flatten(0, 1)
            total += float(cross_entropy(logits, part[:, 1:].flatten(), reduction="sum"))
        mean = total / (len(self.text.rows) * LENGTH)
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


def training_rows(trained: Mapping[Point, Sequence[TrainingRun]]) -> tuple[TrainingRow, ...]:
    """A row for each signal, from its runs; see `results.TrainingRow`. Every signal has the same seeds, in the same order."""
    finals = {point.method: [run.losses[-1] for run in runs] for point, runs in trained.items()}
    bounds = list(zip(finals.get(EXACT, ()), finals.get(FROZEN, ()), strict=False))

    def row(point: Point, runs: Sequence[TrainingRun]) -> TrainingRow:
        shares = [_recovered(run.losses[-1], *bound) for run, bound in zip(runs, bounds, strict=False)]
        losses = tuple(_mean(values) for values in zip(*(run.losses for run in runs), strict=True))
        return TrainingRow(
            method=point.method,
            settings={} if point.method in (EXACT, FROZEN) else point.used(),
            losses=losses,
            cosines=tuple(_mean(values) for values in zip(*(run.cosines for run in runs), strict=True)),
            first_loss=losses[0],
            final_loss=losses[-1],
            recovered=_mean(shares),
            runs=tuple(run.model_copy(update={"recovered": share}) for run, share in zip(runs, shares, strict=False)),
        )

    return tuple(row(point, runs) for point, runs in trained.items())


def _recovered(final: float | None, exact: float | None, frozen: float | None) -> float | None:
    return None if final is None or exact is None or frozen is None or frozen <= exact else (frozen - final) / (frozen - exact)


def _mean(values: Sequence[float | None]) -> float | None:
    """None where any is missing, or there are none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None
