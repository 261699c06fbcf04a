"""What is to be tried with two GPUs is tried with a CPU for both, so that nothing but the names of devices is new to it."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.exhaustive
def test_one_device_and_two_give_the_same_answers() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.gpu.two_gpus", "--cpu"], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout.splitlines()[-1:]) == (0, ["One device and two give the same answers."]), run.stderr[-3000:]
