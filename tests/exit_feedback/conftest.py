"""Fixtures of the tests of exit feedback."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def _single_thread() -> Iterator[None]:
    """Use one thread, since waking a second takes longer than the computations of these tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
