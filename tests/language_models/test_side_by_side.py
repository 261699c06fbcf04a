"""Pieces of work on threads: in order, at most so many at once, each thread multiplying alone, and what others set untouched."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from analyzers.language_models.side_by_side import side_by_side

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_results_come_in_order_from_threads_that_multiply_alone() -> None:
    seen = []

    def work(piece: int) -> int:
        seen.append((threading.current_thread().name, torch.get_num_threads(), torch.is_grad_enabled()))
        time.sleep(0.02 if piece % 2 else 0)
        return piece * piece

    assert list(side_by_side(work, range(12), CPU, 4)) == [piece * piece for piece in range(12)]
    assert len({name for name, *_ in seen}) == 2
    assert {(threads, gradients) for _, threads, gradients in seen} == {(1, False)}
    assert torch.get_num_threads() == 2
    new: list[int] = []
    other = threading.Thread(target=lambda: new.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert new == [2]  # a thread of somebody else's takes over what the process had


def test_where_one_piece_fills_the_memory_the_caller_does_it() -> None:
    names = list(side_by_side(lambda _: threading.current_thread().name, range(3), CPU, 1))
    assert set(names) == {threading.current_thread().name}


def test_an_error_and_a_caller_that_leaves_end_the_work() -> None:
    begun = []

    def work(piece: int) -> int:
        begun.append(piece)
        if piece == 3:
            raise ValueError("three")
        return piece

    with pytest.raises(ValueError, match="three"):
        list(side_by_side(work, range(100), CPU, 2))
    assert max(begun) < 10
    begun.clear()
    pieces = side_by_side(work, [0] * 100, CPU, 2)
    assert next(pieces) == 0
    pieces.close()
    time.sleep(0.1)
    assert len(begun) < 10
