"""How long a run will take, told from the last one."""

import pytest

from components.library import Library
from components.running.duration_estimate import expected_duration
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
