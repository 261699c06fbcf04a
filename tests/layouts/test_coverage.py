"""Every stored tensor is in one class, and the classes add up to what the safetensors library reads in the headers."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from analyzers.check import CheckReport, CheckRequest
from analyzers.check import analyze as check
from analyzers.checkpoints import Access
from analyzers.comparison.parents import ParentsReport
from analyzers.comparison.sparsity import SparsityReport
from analyzers.core.coverage import NAMES, Coverage
from analyzers.core.report import Report
from tests.cases import few
from tests.dtype.reports import inspect
from tests.layouts.architectures import ARCHITECTURES, BF16, F32, VOCABULARY, WIDTH, State, architecture, llama, values
from tests.layouts.file_formats import write, write_pickle, write_sharded
from tests.layouts.pairs import parents
from tests.layouts.relayouts import FORMS, renamed
from tests.sparsity.oracle_comparison import compare


@dataclass(frozen=True, slots=True)
class Totals:
    """Tensors, elements and bytes of a checkpoint."""

    tensors: int
    parameters: int
    nbytes: int


def totals(folder: Path) -> Totals:
    """What the library says of all files; the bytes are those of its file format's header."""
    tensors = parameters = nbytes = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            shapes = [opened.get_slice(name).get_shape() for name in opened.keys()]  # noqa: SIM118
        tensors += len(shapes)
        parameters += sum(torch.Size(shape).numel() for shape in shapes)
        with file.open("rb") as raw:
            (length,) = struct.unpack("<Q", raw.read(8))
            header = json.loads(raw.read(length))
        nbytes += sum(end - start for name, entry in header.items() if name != "__metadata__" for start, end in [entry["data_offsets"]])
    return Totals(tensors, parameters, nbytes)


def add_up(coverage: Coverage, expected: Totals) -> None:
    """The classes partition the tensors, and the summary is that of the classes."""
    assert set(coverage.classes) <= set(NAMES)
    counted = list(coverage.classes.values())
    assert all(each.tensors > 0 for each in counted)
    assert Totals(sum(c.tensors for c in counted), sum(c.parameters for c in counted), sum(c.bytes for c in counted)) == expected
    assert coverage.parameters == expected.parameters
    reached = [coverage.classes[name].parameters for name in ("compared", "read") if name in coverage.classes]
    assert coverage.covered == sum(reached) and len(reached) <= 1
    assert coverage.share == (coverage.covered / coverage.weights if coverage.weights else None)
    left = coverage.weights - coverage.covered
    assert left == sum(each.parameters or 0 for each in coverage.left_out)
    sizes = [each.parameters or 0 for each in coverage.left_out]
    assert sizes == sorted(sizes, reverse=True) and all(each.what and each.tensors for each in coverage.left_out)
    assert coverage.whole == (not left and "empty" not in coverage.classes and not coverage.missed_files)
    assert bool(coverage.suffix()) != coverage.whole


def checked(model: Path, base: Path | None = None) -> CheckReport:
    *_, report = check(CheckRequest(model=str(model), base=str(base) if base else None), Access(local=True))
    assert isinstance(report, CheckReport)
    return report


def same_json(report: Report) -> None:
    assert type(report).model_validate_json(report.model_dump_json()).model_dump() == report.model_dump()


@pytest.mark.parametrize("name", few(ARCHITECTURES, range(1, len(ARCHITECTURES), 3)))
def test_every_architecture_against_a_part_of_it_in_another_layout(name: str, tmp_path: Path) -> None:
    """A third of the tensors is missing, and what is left was transposed: nothing is lost from the account of either side."""
    of = architecture(name)
    part = {key: tensor for at, (key, tensor) in enumerate(of.state.items()) if at % 3}
    if name in FORMS["transposed"].architectures:
        part = FORMS["transposed"](of, part)
    one, other = write(tmp_path / "base", of.state, of.config), write_sharded(tmp_path / "part", part, of.config)
    for side, mode in ((one, "exact"), (other, "quick")):
        (alone,) = inspect(side, mode=mode).coverage
        add_up(alone, totals(side))
        assert alone.whole and set(alone.classes) == {"read"}
    reports: tuple[SparsityReport | ParentsReport, ...] = (
        compare(one, other),
        compare(other, one),
        parents(other, one, "exact"),
        parents(one, other, "quick"),
    )
    for report, sides in zip(reports, ((one, other), (other, one), (other, one), (one, other)), strict=True):
        assert len(report.coverage) == 2
        for coverage, side in zip(report.coverage, sides, strict=True):
            add_up(coverage, totals(side))
            assert coverage.whole == (side == other)
        same_json(report)


@dataclass(frozen=True, slots=True)
class Odd:
    """Tensors beside those of a small Llama, and the classes they belong to when the checkpoint is read alone."""

    name: str
    state: State
    classes: dict[str, int]


def _fp8(*shape: int) -> torch.Tensor:
    return values("fp8", shape, F32).mul(500).to(torch.float8_e4m3fn)


_LAYER = "model.layers.0."
_LORA: State = {
    f"{_LAYER}self_attn.{part}_proj.lora_{side}.default.weight": values(f"{part}{side}", (4, WIDTH) if side == "A" else (rows, 4), F32)
    for part, rows in (("q", 32), ("v", 16))
    for side in "AB"
}
_INTEGERS: State = {f"{_LAYER}mlp.extra_proj.weight": torch.arange(64, dtype=torch.int8).view(8, 8)}
_MASKS: State = {
    f"{_LAYER}self_attn.rotary_emb.inv_freq": values("inv_freq", (4,), F32),
    f"{_LAYER}self_attn.masked_bias": torch.tensor(-1e9),
    f"{_LAYER}self_attn.bias": torch.ones(1, 1, 8, 8, dtype=torch.uint8).tril(),
    "model.embeddings.position_ids": torch.arange(40).view(1, 40),
    "model.bn1.running_mean": values("running_mean", (16,), F32),
    "model.bn1.num_batches_tracked": torch.tensor(7),
}
ODD = (
    Odd("empty tensors", {"model.empty.weight": torch.empty(0, WIDTH), "model.none.bias": torch.empty(0, dtype=BF16)}, {"empty": 2}),
    Odd("buffers", _MASKS, {"buffer": len(_MASKS)}),
    Odd("an adapter beside", _LORA, {"adapter": len(_LORA)}),
    Odd("a few integers", _INTEGERS, {"undecoded": 1}),
    Odd(
        "fp8 with scales of blocks",
        {"model.extra.weight": _fp8(32, 32), "model.extra.weight_scale_inv": torch.ones(1, 1)},
        {"buffer": 1},
    ),
    Odd(
        "fp8 with a scale, an activation scale and a marker",
        {
            "model.extra.weight": _fp8(32, 32),
            "model.extra.scale_weight": torch.tensor([2e-4]),
            "model.extra.scale_input": torch.ones(1),
            "scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn),
        },
        {"buffer": 3},
    ),
    Odd("a number", {"model.logit_scale": torch.tensor(4.6052)}, {}),
    Odd("four axes and more", {"model.conv.weight": values("conv", (2, 3, 4, 5, 6), F32)}, {}),
    Odd("everything at once", _MASKS | _LORA | _INTEGERS | {"model.empty.weight": torch.empty(0, 3)}, {
        "buffer": len(_MASKS), "adapter": len(_LORA), "undecoded": 1, "empty": 1,
    }),
)  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.name)
def test_odd_tensors_are_classed(odd: Odd, tmp_path: Path) -> None:
    config = architecture("llama").config
    state = llama() | odd.state
    folder, base = write(tmp_path / "odd", state, config), write(tmp_path / "base", llama(), config)
    expected = totals(folder)
    (alone,) = inspect(folder, mode="exact").coverage
    add_up(alone, expected)
    assert {name: each.tensors for name, each in alone.classes.items()} == {
        "read": len(state) - sum(odd.classes.values()),
        **odd.classes,
    }
    for report, at in ((compare(base, folder), 1), (compare(folder, base), 0), (parents(folder, base, "exact"), 0)):
        add_up(report.coverage[at], expected)
        add_up(report.coverage[1 - at], totals(base))
        assert report.coverage[1 - at].whole
        assert report.coverage[at].classes["compared"].tensors == len(llama())
        only_buffers = set(odd.classes) <= {"buffer"} and len(odd.state) == sum(odd.classes.values())
        assert report.coverage[at].whole == only_buffers
    (of_check,) = checked(folder).coverage
    add_up(of_check, expected)


def test_what_is_filtered_is_excluded(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", llama(), architecture("llama").config)
    matching = [tensor.numel() for name, tensor in llama().items() if "mlp" in name]
    (coverage,) = inspect(folder, exclude="mlp").coverage
    add_up(coverage, totals(folder))
    assert (coverage.classes["excluded"].tensors, coverage.classes["excluded"].parameters) == (len(matching), sum(matching))
    assert not coverage.whole
    other = write(tmp_path / "other", renamed(llama(), ((r"^", "module."),)), architecture("llama").config)
    for side in compare(folder, other, include="mlp").coverage:
        add_up(side, totals(folder))
        assert side.classes["compared"].tensors == len(matching)
        assert side.classes["excluded"].tensors == len(llama()) - len(matching)


def test_copies_are_tied(tmp_path: Path) -> None:
    of = architecture("t5")
    state = FORMS["copies of the embedding"](of, of.state)
    folder = write(tmp_path / "t5", state, of.config)
    (coverage,) = inspect(folder, mode="exact").coverage
    add_up(coverage, totals(folder))
    assert (coverage.classes["tied"].tensors, coverage.classes["tied"].parameters) == (3, 3 * VOCABULARY * WIDTH)
    assert coverage.whole and coverage.covered == sum(tensor.numel() for tensor in of.state.values())
    state |= {"lm_head.weight": values("another head", (VOCABULARY, WIDTH), F32)}  # which only has the shape of the embedding
    (coverage,) = inspect(write(tmp_path / "head", state, of.config), mode="exact").coverage
    assert coverage.classes["tied"].tensors == 2


def test_pickles(tmp_path: Path) -> None:
    """Tensors that share memory are stored once; each has its elements in the account."""
    state = llama() | {"lm_head.weight": llama()["model.embed_tokens.weight"]}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    folder = write_pickle(tmp_path / "pickle", state, architecture("llama").config | {"tie_word_embeddings": True})
    (coverage,) = inspect(folder, mode="exact").coverage
    assert sum(each.tensors for each in coverage.classes.values()) == len(state)
    assert sum(each.parameters for each in coverage.classes.values()) == coverage.parameters
    assert coverage.classes["tied"].parameters == VOCABULARY * WIDTH and coverage.whole
