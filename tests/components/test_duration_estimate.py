"""How long a run will take, told from the last one."""

from types import SimpleNamespace

import pytest

from analyzers.core.request import Progress
from components.library import Library
from components.running import progress
from components.running.duration_estimate import expected_duration
from components.running.progress import Meter
from components.site import stored_results
from tests.components.exit_reports import exit_report, exit_request

SMALL = exit_request()


@pytest.fixture
def last(library: Library) -> None:
    """A run of tiny-bf16 of 20 s is stored."""
    made = exit_report()
    stored_results.store(made.model_copy(update={"timing": made.timing.model_copy(update={"seconds": 20.0})}))


@pytest.mark.usefixtures("last")
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seed": 1}, "about 20 s,"),
        ({"samples": 2 * SMALL.samples, "tokens": 2 * SMALL.tokens}, "about 40 s,"),
        ({"model": "sample:tiny-fp32"}, ""),
        ({"model": "x" * 500}, ""),
    ],
)
def test_a_run_takes_as_long_as_the_last_of_the_model_by_what_is_run_through_it(changed: dict[str, object], said: str) -> None:
    asked = expected_duration(SMALL.model_copy(update=changed))
    assert asked.startswith(said) and bool(asked) == bool(said)


def test_without_a_run_to_compare_with_nothing_is_promised(library: Library) -> None:
    assert expected_duration(SMALL) == ""


def test_it_is_shown_until_the_progress_can_be_counted() -> None:
    meter = Meter("about 40 s, as the last run of this model")
    assert "about 40 s" in meter.waiting("", "about 40 s, as the last run of this model")
    assert "about 40 s" in meter.show(Progress(done=0, total=0, unit="", note="loading"))
    assert "about 40 s" not in meter.show(Progress(done=1, total=4, unit="tokens", note="running"))


def test_the_time_left_is_that_of_the_work_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    meter = Meter()
    for seconds, done, unit in ((0, 0, "bytes"), (60, 4, "bytes"), (61, 0, "layers"), (63, 1, "layers")):
        now[0] = 200 + seconds
        said = meter.show(Progress(done=done, total=4, unit=unit))
    assert "25%, 1 of 4 layers, about 6.0 s left on this machine" in said
    for seconds, done, total in ((70, 0, 0), (90, 1, 5), (92, 2, 5)):  # loading, which is not counted, and the first layer
        now[0] = 200 + seconds
        said = meter.show(Progress(done=done, total=total, unit="steps"))
    assert "40%, 2 of 5 steps, about 6.0 s left on this machine" in said
