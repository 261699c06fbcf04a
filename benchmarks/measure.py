"""Measures a row: our command and the naive one alternately, in processes of their own."""

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import isclose
from pathlib import Path
from statistics import median
from typing import Any

from .child import Run, run
from .inputs import OFFLINE, Inputs
from .rows import PROGRAMS, START, Row

HEADINGS = ("", "ours: s", "cpu s", "MB", "naive: s", "cpu s", "MB", "ratio", "target", "met")


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians of the seconds over the runs of a command, its largest peak, and what it printed: JSON, or None."""

    seconds: float
    processor: float
    peak_bytes: float
    printed: Any

    @classmethod
    def of(cls, runs: Sequence[Run], own_seconds: bool) -> "Figures":
        """Summarize the runs. own_seconds: those that the command prints. Peak memory is that of a GPU where it prints that."""
        printed = [json.loads(each.output) if each.output.strip() else {} for each in runs]
        seconds = [_own_seconds(each) for each in printed] if own_seconds else [each.seconds for each in runs]
        peaks = [found.get("peak_bytes", each.peak_bytes) for found, each in zip(printed, runs, strict=True)]
        return cls(median(seconds), median(each.processor for each in runs), max(peaks), printed[-1])

    def cells(self) -> tuple[str, ...]:
        """Format them."""
        return f"{self.seconds:.3g}", f"{self.processor:.3g}", f"{self.peak_bytes / 1e6:,.0f}"


def _own_seconds(printed: Mapping[str, Any]) -> float:
    return float(printed["timing"]["reading_seconds"] if "timing" in printed else printed["seconds"])


@dataclass(frozen=True, slots=True)
class Result:
    """The cells of a line of the table. wrong: what both printed and differs, or how a command failed; missed: a target."""

    cells: tuple[str, ...]
    wrong: str = ""
    missed: bool = False


def measure(row: Row, inputs: Inputs, device: str, folder: Path, runs: int, start: Callable[[], Figures] | None) -> Result:
    """Run both commands, after a discarded run of each. start: measures `START` where a target needs it; without it none is judged."""
    values = {**inputs.values, "device": device, "out": str(folder / "out"), "ours": str(folder / "ours.json")}
    commands = {side: command for side, command in (("ours", row.ours), ("naive", row.naive)) if command}
    done: dict[str, list[Run]] = {side: [] for side in commands}
    for _ in range(1 + runs):
        for side, command in commands.items():
            done[side].append(run([word.format(**values) for word in words(command)], inputs.variables))
            shutil.rmtree(values["out"], ignore_errors=True)
            if side == "ours":
                Path(values["ours"]).write_text(done[side][-1].output)
    figures = {side: Figures.of(done[side][1:], side in row.own_seconds) for side in commands}
    ours, naive = figures["ours"], figures.get("naive")
    ratio = naive.seconds / ours.seconds if naive else None
    missed = start is not None and not all(_met(name, limit, ours, ratio, start) for name, limit in row.targets.items())
    targets = ", ".join(f"{limit:g} {name}" for name, limit in row.targets.items())
    judged = "" if start is None or not targets else "NO" if missed else "yes"
    cells = (row.name, *ours.cells(), *(naive.cells() if naive else [""] * 3), f"{ratio:.2f}" if ratio else "", targets, judged)
    return Result(cells, "; ".join(_differences(row, ours, naive) if naive else ()), missed)


def measure_start(runs: int) -> Figures:
    """Measure `START`."""
    return Figures.of([run(words(START), OFFLINE) for _ in range(1 + runs)][1:], False)


def words(command: str) -> list[str]:
    """Split a command, and put the program in the place of its name."""
    program, *arguments = shlex.split(command)
    return [sys.executable, "-m", PROGRAMS[program], *arguments] if program in PROGRAMS else [program, *arguments]


def _met(name: str, limit: float, ours: Figures, ratio: float | None, start: Callable[[], Figures]) -> bool:
    if name == "times":
        return ratio is not None and ratio >= limit
    quantity = name.removesuffix(" beyond start")

    def taken(figures: Figures) -> float:
        return {"s": figures.seconds, "processor s": figures.processor, "MB": figures.peak_bytes / 1e6}[quantity]

    return taken(ours) - (0 if quantity == name else taken(start())) <= limit


def _differences(row: Row, ours: Figures, naive: Figures) -> Iterator[str]:
    for path, other in row.equal.items():
        value, naive_value = (reduce(dict.__getitem__, name.split("."), each.printed) for name, each in ((path, ours), (other, naive)))
        if not isclose(value, naive_value, rel_tol=row.tolerance):
            yield f"{path} is {value}, and {naive_value} naively"
