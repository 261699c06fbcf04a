"""Runs scans as commands, and reads their files."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas

from analyzers.language_models.samples import SAMPLES
from analyzers.scan.outcomes import Outcomes

ROOT = Path(__file__).parents[2]
ALL_SAMPLES = tuple(f"sample:{name}" for name in SAMPLES)
TABLES = ("checkpoints.parquet", "tensors.parquet")


def command(*arguments: str) -> list[str]:
    """Return the command line ``python -m analyzers scan ARGUMENTS``."""
    return [sys.executable, "-W", "error", "-m", "analyzers", "scan", *arguments]


def run(
    *arguments: str, limit: float = 110, stdin: bytes = b"", environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process."""
    told = os.environ | dict(environ or {})
    done = subprocess.run(command(*arguments), cwd=ROOT, env=told, capture_output=True, timeout=limit, input=stdin, check=False)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def write_list(path: Path, references: Sequence[str | Path]) -> Path:
    """Write a list file, and return its path."""
    path.write_text("".join(f"{reference}\n" for reference in references), encoding="utf-8")
    return path


def summary(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Parse the output of a scan with --json."""
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def table(folder: Path, name: str = "checkpoints") -> pandas.DataFrame:
    """Read a table of a scan with pandas."""
    return pandas.read_parquet(folder / f"{name}.parquet")


def sums(folder: Path) -> dict[str, str]:
    """Return the checksum of each table."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in TABLES}


def finished(folder: Path) -> set[str]:
    """Return the checkpoints with an outcome in the folder of a scan, running or ended."""
    return set(Outcomes(folder).entries)


def launcher(processes: int, port: int, *options: str) -> list[str]:
    """Return the arguments of ``accelerate launch`` that precede the program."""
    several = ["--multi_gpu"] if processes > 1 else []
    fixed = ["--num_machines", "1"] if "--num_machines" not in options else []
    plain = ["--mixed_precision", "no", "--dynamo_backend", "no", "--num_cpu_threads_per_process", "1", "--main_process_port", str(port)]
    return [
        sys.executable, "-m", "accelerate.commands.launch", *several, *fixed, "--num_processes", str(processes), *plain, *options,
        "-m", "analyzers", "scan",
    ]  # fmt: skip


def start(arguments: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command line in a separate process."""
    told = os.environ | dict(environ)
    return subprocess.run(arguments, cwd=ROOT, env=told, capture_output=True, text=True, timeout=110, check=False)
