"""Where pairs changed, from masks in chunks of any size and order."""

import numpy as np
import pytest

from analyzers.numerics import ChangedPositions, changed_positions, intersections


@pytest.mark.parametrize("share", [0.0003, 0.02])
@pytest.mark.parametrize("shape", [(300, 100), (7, 4_001), (1, 9_000), (5_000, 1), (200, 192), (90, 64)])
def test_rows_and_columns_from_chunks_of_any_size_in_any_order(shape: tuple[int, int], share: float) -> None:
    rng = np.random.default_rng(1)
    matrix = rng.random(shape) < share
    for cuts in (0, 3, 30):
        ends = np.unique([0, *rng.integers(0, matrix.size, cuts).tolist(), matrix.size])
        threads = [ChangedPositions(*shape) for _ in range(2)]
        for i in rng.permutation(ends.size - 1).tolist():
            threads[i % 2].update(matrix.ravel()[ends[i] : ends[i + 1]], int(ends[i]))
        threads[0].merge(threads[1])
        assert (threads[0].changed_rows, threads[0].changed_columns) == (int(matrix.any(axis=1).sum()), int(matrix.any(axis=0).sum()))


def test_columns_are_given_up_where_there_are_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_positions, "MOST_COLUMNS", 99)
    found, other = (ChangedPositions(2, 100) for _ in range(2))
    for each, start, count in ((found, 0, 150), (other, 150, 50)):
        each.update(np.ones(count, np.bool_), start)
    found.merge(other)
    assert (found.changed_rows, found.changed_columns) == (2, None)


def test_intersections_count_shared_elements() -> None:
    masks = list(np.random.default_rng(3).random((5, 603)) < 0.5)
    masks[3] = np.zeros(603, dtype=np.bool_)
    np.testing.assert_array_equal(intersections(masks), [[int((a & b).sum()) for b in masks] for a in masks])
