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
from analyzers.exit_feedback.report import TrainingRow
from analyzers.exit_feedback.signals import EXACT, FROZEN, NULL
from analyzers.exit_feedback.training import RATE, Course, with_recovered
from analyzers.exit_feedback.trunk import LENGTH, WIDTH, Text, Trunk

STEPS = 6
SETTINGS = HeadSettings(rank=16, k=4, anchors=16)


@pytest.fixture(scope="module")
def course() -> Course:
    rows = torch.randint(23, (6, LENGTH + 1), generator=torch.Generator().manual_seed(0)).cumsum(1) % 23
    return Course(Text(rows, 23), STEPS, 5, "cpu")


def trained(course: Course, method: str, settings: HeadSettings = SETTINGS) -> tuple[TrainingRow, list[float | None]]:
    running, said = course.train(Point(method, settings)), []
    while True:
        try:
            said.append(next(running))
        except StopIteration as end:
            return end.value, said


def test_the_exact_signal_is_backpropagation(course: Course) -> None:
    """The same trunk with a plain linear head, trained by autograd, step by step."""
    row, said = trained(course, EXACT)
    trunk, weight = course._start()
    head = nn.Linear(WIDTH, 23, bias=False)
    head.weight = nn.Parameter(weight)
    optimizer = torch.optim.AdamW([*trunk.parameters(), head.weight], lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    losses = []
    for step, chosen in zip(range(STEPS), course._batches(), strict=False):
        rows = course.text.rows[chosen]
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / max(1.0, 0.1 * STEPS))
        loss = cross_entropy(head(trunk(rows[:, :-1])).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    assert course.recorded == tuple(range(STEPS))
    assert row.losses == pytest.approx(losses, abs=1e-4)
    assert row.cosines == pytest.approx([1.0] * STEPS, abs=1e-5)
    with torch.no_grad():
        final = cross_entropy(head(trunk(course.text.rows[:, :-1])).flatten(0, 1), course.text.rows[:, 1:].flatten())
    assert row.final_loss == pytest.approx(float(final), abs=1e-4) and said[-1] == row.final_loss
    assert row.first_loss is not None and abs(row.first_loss - math.log(23)) < 0.1
    assert row.final_loss is not None and row.final_loss < row.first_loss


def test_a_frozen_trunk_learns_nothing_and_its_head_does(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Trunk] = []
    start = Course._start

    def remembered(self: Course) -> tuple[Trunk, Tensor]:
        trunk, weight = start(self)
        made.append(trunk)
        return trunk, weight

    monkeypatch.setattr(Course, "_start", remembered)
    row, _ = trained(course, FROZEN)
    before = start(course)[0].state_dict()
    assert all(torch.equal(value, before[name]) for name, value in made[0].state_dict().items())
    assert row.final_loss is not None and row.first_loss is not None and row.final_loss < row.first_loss
    assert row.settings == {} and set(row.cosines) == {None}


@pytest.mark.parametrize("method", [*HEADS, NULL])
def test_all_start_alike_and_twice_is_the_same(course: Course, method: str) -> None:
    row, said = trained(course, method)
    again, _ = trained(course, method)
    assert row == again and row.first_loss == course.first_loss and row.losses[0] == trained(course, FROZEN)[0].losses[0]
    assert len(said) <= course.progress()
    assert None not in row.losses and None not in row.cosines


def test_a_loss_that_is_no_number_ends_a_curve(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzers.exit_feedback.training.RATE", 1e30)
    row, said = trained(course, EXACT)
    assert row.final_loss is None and said[-1] is None and row.losses[0] is not None and row.losses[-1] is None


def test_what_is_recovered_is_between_frozen_and_exact() -> None:
    def row(method: str, final: float | None) -> TrainingRow:
        return TrainingRow(method=method, settings={}, losses=(), cosines=(), first_loss=4.0, final_loss=final, recovered=None)

    rows = [row(EXACT, 1.0), row(FROZEN, 3.0), row("a", 2.5), row("b", 3.5), row("c", None)]
    assert [each.recovered for each in with_recovered(rows)] == [1.0, 0.0, 0.25, -0.25, None]
    rows[0] = row(EXACT, 3.0)
    assert {each.recovered for each in with_recovered(rows)} == {None}


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
