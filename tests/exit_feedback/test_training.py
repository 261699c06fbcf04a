"""Training of the small transformer: the exact signal against plain autograd, frozen layers, and equal starts."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from analyzers.errors import InvalidCheckpoint
from analyzers.exit_feedback.heads import HEADS, HeadSettings
from analyzers.exit_feedback.points import Point
from analyzers.exit_feedback.results import TrainingRow, TrainingRun
from analyzers.exit_feedback.signals import EXACT, FROZEN, NULL
from analyzers.exit_feedback.text import recovered
from analyzers.exit_feedback.training import LENGTH, RATE, WIDTH, Course, Text, Trunk, training_rows

STEPS = 6
SETTINGS = HeadSettings(rank=16, k=4, anchors=16)


@pytest.fixture(scope="module")
def course() -> Course:
    rows = torch.randint(23, (6, LENGTH + 1), generator=torch.Generator().manual_seed(0)).cumsum(1) % 23
    return Course(Text(rows, 23), STEPS, 5, "cpu")


def trained(course: Course, method: str, settings: HeadSettings = SETTINGS) -> tuple[TrainingRun, list[float | None]]:
    *said, run = course.train(Point(method, settings))
    assert isinstance(run, TrainingRun)
    return run, [loss for loss in said if not isinstance(loss, TrainingRun)]


def test_the_exact_signal_is_backpropagation(course: Course) -> None:
    """The same trunk with a plain linear head, trained by autograd, step by step."""
    run, _ = trained(course, EXACT)
    trunk, weight = course._start()
    head = nn.Linear(WIDTH, 23, bias=False)
    head.weight = nn.Parameter(weight)
    optimizer = torch.optim.AdamW([*trunk.parameters(), head.weight], lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    losses = []
    for step, chosen in zip(range(STEPS + 1), course._batches(), strict=False):
        with torch.no_grad():
            logits = head(trunk(course.text.rows[:, :-1])).flatten(0, 1)
            losses.append(float(cross_entropy(logits, course.text.rows[:, 1:].flatten())))
        rows = course.text.rows[chosen]
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / max(1.0, 0.1 * STEPS))
        loss = cross_entropy(head(trunk(rows[:, :-1])).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert course.recorded == tuple(range(STEPS + 1))
    assert run.losses == pytest.approx(losses, abs=1e-4)
    assert run.cosines == pytest.approx([1.0] * (STEPS + 1), abs=1e-5)
    assert abs(losses[0] - math.log(23)) < 0.1 and losses[-1] < losses[0]


def test_a_frozen_trunk_learns_nothing_and_its_head_does(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Trunk] = []
    start = Course._start

    def remembered(self: Course) -> tuple[Trunk, Tensor]:
        trunk, weight = start(self)
        made.append(trunk)
        return trunk, weight

    monkeypatch.setattr(Course, "_start", remembered)
    run, _ = trained(course, FROZEN)
    before = start(course)[0].state_dict()
    assert all(torch.equal(value, before[name]) for name, value in made[0].state_dict().items())
    assert run.losses[0] is not None and run.losses[-1] is not None and run.losses[-1] < run.losses[0]
    assert set(run.cosines) == {None}


@pytest.mark.parametrize("method", [*HEADS, NULL])
def test_all_start_alike_and_twice_is_the_same(course: Course, method: str) -> None:
    run, said = trained(course, method)
    again, _ = trained(course, method)
    assert run == again and run.losses[0] == trained(course, FROZEN)[0].losses[0]
    assert len(said) < course.progress()
    assert None not in run.losses and None not in run.cosines


def test_a_loss_that_is_no_number_ends_a_curve(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzers.exit_feedback.training.RATE", 1e30)
    run, _ = trained(course, EXACT)
    assert run.losses[0] is not None and run.losses[-1] is None


def test_what_is_recovered_is_between_frozen_and_exact() -> None:
    def rows(finals: dict[str, tuple[float | None, ...]]) -> dict[str, TrainingRow]:
        """Trained with a seed for each final loss."""
        runs = {
            Point(method, HeadSettings()): [
                TrainingRun(seed=seed, losses=(4.0, final), cosines=(None, 1.0), recovered=None) for seed, final in enumerate(of_seeds)
            ]
            for method, of_seeds in finals.items()
        }
        return {row.method: row for row in training_rows(runs)}

    given = {FROZEN: (3.0, 3.0), "dense": (2.5, 2.0), "span": (3.5, 3.5), "svd": (2.0, None)}
    found = rows({EXACT: (1.0, 2.0), **given})
    assert [row.recovered for row in found.values()] == [1.0, 0.0, 0.625, -0.375, None]
    assert [run.recovered for run in found["dense"].runs] == [0.25, 1.0] and found["dense"].losses == (4.0, 2.25)
    assert found["svd"].final_loss is None and found["svd"].runs[0].recovered == 0.5
    assert list(map(recovered, found.values())) == ["100%", "0%", "62% (25% to 100%)", "worse than frozen", "-"]
    assert {row.recovered for row in rows({EXACT: (3.0, 3.0), **given}).values()} == {None}


def test_the_text_is_the_built_in_one_whatever_the_vocabulary() -> None:
    def letters(most: int) -> Callable[[str], list[int]]:
        """One token for each letter, with numbers far apart."""
        return lambda text: [7 * ord(letter) for letter in text[:most]]

    text = Text.of(letters(200))
    assert text.vocabulary == len(text.rows.unique()) < 128 and int(text.rows.max()) == text.vocabulary - 1  # type: ignore[no-untyped-call]
    assert text.rows.shape[1] == LENGTH + 1 and torch.equal(text.rows[0, 1:][-1:], text.rows[1, :1])
    with pytest.raises(InvalidCheckpoint, match="too few to train on"):
        Text.of(letters(1))


def test_the_global_generator_is_left_alone(course: Course) -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    trained(course, "dense")
    trained(course, NULL)
    assert torch.equal(torch.rand(1), expected)
