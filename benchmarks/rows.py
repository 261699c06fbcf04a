"""The table of benchmarks: a question, our command, and the naive way to answer it from the same inputs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .inputs import SetUp, fine_tunes, hub, model, nothing, toy, wide

PROGRAMS = {"mantissa": "mantissa", "naive": "benchmarks.naive", "in_memory": "benchmarks.in_memory"}
"""Modules that a command names by its first word."""
START = "mantissa dtype sample:tiny-bf16 --json"
"""The start of the program, and an answer that reads almost nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """A benchmark.

    inputs: sets up what the placeholders in both commands stand for. In addition there are {device}; {out}, a folder that does not exist;
    and {ours}, a file of what our command printed. The first word of a command is in `PROGRAMS`, or is a program of the system.
    equal: fields that both print, ours to naive, and that must be equal within ``tolerance``, relative.
    targets: what we promise: the least "times" that the naive way takes as long, or the most of our "s", "processor s" or "MB"; "beyond
    start" without what `START` takes.
    own_seconds: compare the seconds that a command prints, which do not count starting and loading: "ours", "naive".
    """

    name: str
    inputs: SetUp
    ours: str
    naive: str = ""
    equal: Mapping[str, str] = field(default_factory=dict)
    targets: Mapping[str, float] = field(default_factory=dict)
    tolerance: float = 0.0
    own_seconds: tuple[str, ...] = ()


_BOTH = ("ours", "naive")
_EXTREMES = {"extremes.abs_min": "abs_min", "extremes.abs_max": "abs_max"}
_CHANGES = {"num_changed": "num_changed", "total_parameters": "total_parameters"}
_HEAD = "{tokens} {width} {vocabulary} {device}"

ROWS = (
    Row("dtype", fine_tunes, "mantissa dtype {base} --exact --device {device} --json",
        "naive extremes {base} {device}", _EXTREMES, {"times": 4, "MB": 500}),
    Row("sparsity", fine_tunes, "mantissa sparsity {base} {tuned} --exact --device {device} --json",
        "naive changes {base} {tuned} {device}", _CHANGES, {"times": 8, "MB": 600}),
    # 1.2 times as long as sparsity.
    Row("compare", fine_tunes, "mantissa compare {base} {slight} --exact --json",
        "mantissa sparsity {base} {slight} --exact --json", {"relation.changed_share": "update_fraction"}, {"times": 0.83, "MB": 300}),
    Row("adapter", fine_tunes, "mantissa sparsity {base} {base}+{adapter} --exact --json",
        "naive merge {base} {adapter} {out}", _CHANGES, {"times": 2, "MB": 600}, tolerance=1e-7),  # peft sums in fp32
    Row("memory-dtype", fine_tunes, "in_memory dtype {base} {device}",
        "naive extremes {base} {device} 2", {"abs_min": "abs_min", "abs_max": "abs_max"}, own_seconds=_BOTH),
    Row("memory-sparsity", fine_tunes, "in_memory sparsity {base} {tuned} {device}",
        "naive changes {base} {tuned} {device} auto 2", _CHANGES, own_seconds=_BOTH),
    # It reads 2.5 times as much as it copies, at half the rate.
    Row("shrink", wide, "mantissa shrink {wide} --out {out} --json", "cp -r {wide} {out}", targets={"times": 0.2, "MB": 500}),
    Row("check", wide, "mantissa check {wide} --json", targets={"MB": 500}),
    Row("dtype-hub", hub, "mantissa dtype org/base --json", "naive download org/base {downloaded}",
        targets={"s": 6, "processor s beyond start": 3, "MB": 500}, own_seconds=("naive",)),
    Row("mixture-hub", hub, "mantissa dtype org/mixture --json", targets={"s": 60, "MB": 500}),
    Row("compare-hub", hub, "mantissa compare org/tuned org/base --json",
        targets={"s beyond start": 8, "processor s beyond start": 6, "MB": 300}),
    Row("parents-hub", hub, "mantissa parents org/merged org/base org/other --json", targets={"s beyond start": 10, "MB": 300}),
    Row("copy-hub", hub, "mantissa parents org/gptq org/base --json", targets={"s": 10, "MB": 300}),
    Row("no-copy-hub", hub, "mantissa parents org/gptq org/other --json", targets={"s": 10, "MB": 300}),
    # 1.3 times as long as a backward pass per sample, whose gradients take gigabytes.
    Row("conflict", model, "in_memory conflict {model} {device}", "naive conflict {model} {ours} {device}",
        {"conflict_rate": "conflict_rate"}, {"times": 0.77}, 1e-3, _BOTH),
    # 1.6 times as long as the plain passes.
    Row("precision", model, "in_memory precision {model} {device}", "naive passes {model} {ours} {device}",
        {"loss": "loss"}, {"times": 0.625}, 1e-4, _BOTH),
    Row("exit", toy, "mantissa exit {toy} --no-sweep --device {device} --json", own_seconds=("ours",)),
    Row("monitor", toy, "in_memory look {toy} {device}", "in_memory step {toy} {device}", targets={"times": 100}, own_seconds=_BOTH),
    Row("head-exact", nothing, f"in_memory head exact {_HEAD}", f"in_memory head naive {_HEAD}", {"loss": "loss"}, {}, 1e-2, _BOTH),
    Row("head-hybrid", nothing, f"in_memory head hybrid {_HEAD}", f"in_memory head naive {_HEAD}", own_seconds=_BOTH),
    Row("sample-conflict", nothing, "mantissa conflict sample:tiny-bf16 --json", targets={"s": 30}),
    Row("sample-precision", nothing, "mantissa precision sample:tiny-bf16 --json", targets={"s": 30}),
    Row("sample-exit", nothing, "mantissa exit sample:tiny-bf16 --json", targets={"s": 30}),
)  # fmt: skip
