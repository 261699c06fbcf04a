"""Training curves: one small transformer from the same initial weights on the same batches, under each signal.

Without its head, it has two pre-norm layers (RMSNorm, rotary embeddings, causal attention, SwiGLU) and a final RMSNorm. Its vocabulary is
the tokens that occur in the text, renumbered, so that it is as fast for a tokenizer of 256,000 tokens as for any other.

The head always learns by its exact gradient; only the feedback to the layers below differs. AdamW divides each parameter's gradient by its
running RMS, so that a signal with the wrong scale has no disadvantage.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention, silu

from analyzers.errors import InvalidCheckpoint
from analyzers.exit_feedback.alignment import cosines, distribution, products
from analyzers.exit_feedback.heads import FeedbackHead, HeadSettings, build_head
from analyzers.exit_feedback.points import Point
from analyzers.exit_feedback.results import TrainingRow, TrainingRun
from analyzers.exit_feedback.results import Trunk as TrunkFacts
from analyzers.exit_feedback.signals import EXACT, FROZEN
from analyzers.language_models.builtin_text import builtin_pairs

WIDTH, LAYERS, HEADS, INNER = 64, 2, 4, 160
LENGTH, BATCH = 64, 4
STD = 0.02
_BASE = 10_000.0


class Layer(nn.Module):
    """Attention and feed-forward network, pre-norm with residual connections."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)
        self.first_norm = nn.Parameter(torch.ones(WIDTH))
        self.second_norm = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """(S, L, width) to the same; rotation: (L, size / 2) complex, of the rotary embedding."""
        samples, length, _ = x.shape
        qkv = self.qkv(rms_norm(x, (WIDTH,), self.first_norm)).view(samples, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(_rotated(qkv[0], rotation), _rotated(qkv[1], rotation), qkv[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(samples, length, WIDTH))
        gate, up = self.gate_up(rms_norm(x, (WIDTH,), self.second_norm)).chunk(2, -1)
        hidden: Tensor = x + self.down(silu(gate) * up)
        return hidden


class Trunk(nn.Module):
    """token_ids (S, L) to hidden states (S, L, width), after the final norm."""

    rotation: Tensor

    def __init__(self, vocabulary: int, seed: int) -> None:
        """Weights of ``seed``, the same on every device, N(0, 0.02^2); gains of norms 1."""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.Parameter(torch.ones(WIDTH))
        size = WIDTH // HEADS
        angles = torch.arange(LENGTH)[:, None] * _BASE ** (-torch.arange(0, size, 2) / size)
        self.register_buffer("rotation", torch.polar(torch.ones_like(angles), angles), persistent=False)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=STD, generator=generator)

    def forward(self, token_ids: Tensor) -> Tensor:
        """See the class."""
        hidden = self.embedding(token_ids)
        for layer in self.layers:
            hidden = layer(hidden, self.rotation[: token_ids.shape[1]])
        return rms_norm(hidden, (WIDTH,), self.norm)


@dataclass(frozen=True, eq=False, slots=True)
class Text:
    """rows: (R, LENGTH + 1), the built-in text as one stream, its tokens renumbered in the order of their ids; vocabulary: how many."""

    rows: Tensor
    vocabulary: int

    @classmethod
    def of(cls, tokenize: Callable[[str], Sequence[int]]) -> "Text":
        """tokenize: the token ids of a text. Raises InvalidCheckpoint for fewer than two rows."""
        stream = torch.tensor([token for pair in builtin_pairs() for token in tokenize(pair.prompt + pair.output)])
        whole = (len(stream) - 1) // LENGTH
        if whole < 2:
            raise InvalidCheckpoint(f"The tokenizer splits the built-in text into {len(stream):,} tokens, too few to train on.")
        known, renumbered = torch.unique(stream, return_inverse=True)
        return cls(renumbered[: whole * LENGTH + 1].unfold(0, LENGTH + 1, LENGTH), len(known))


def _rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """(S, heads, L, size), each pair of numbers rotated by the angle of its position."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * rotation).flatten(-2)


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
