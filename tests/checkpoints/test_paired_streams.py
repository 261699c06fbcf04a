"""Several checkpoints as one stream: every element of every side as the libraries read it, whatever they are stored in."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from analyzers.checkpoints import (
    Access,
    Alignment,
    Checkpoint,
    Chunk,
    Plan,
    Span,
    align,
    open_checkpoint,
    stream,
    whole_spans,
)
from analyzers.core import limits
from analyzers.core.errors import HubError, InvalidCheckpoint
from tests.dtype.checkpoints import normal, write, write_sharded
from tests.hub import Fault, LocalHub, OnDisk

LOCAL = Access(local=True)
spans_module = import_module("analyzers.checkpoints.reading.spans")
stream_module = import_module("analyzers.checkpoints.reading.stream")  # the function of the same name stands before it in its package
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

State = Mapping[str, torch.Tensor]


def bits(tensor: torch.Tensor) -> NDArray[Any]:
    """Patterns of a tensor in row-major order, by torch alone."""
    size = tensor.element_size()
    return tensor.contiguous().flatten().view(INTEGERS[size]).numpy().view(f"<u{size}")


def opened(*folders: Path | str) -> list[Checkpoint]:
    return [open_checkpoint(str(folder), LOCAL) for folder in folders]


@contextmanager
def no_threads_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = {thread for thread in threading.enumerate() if thread.name.startswith("stream-")}
    assert left <= before


def collect(span: Span, chunks: Iterator[Chunk]) -> list[tuple[int, list[NDArray[Any] | None]]]:
    """Copies, since a chunk is valid until the next."""
    return [(chunk.start, [None if each is None else each.copy() for each in chunk.sides]) for chunk in chunks]


def assembled(
    checkpoints: Sequence[Checkpoint], alignment: Alignment, spans: Sequence[Span] | None = None
) -> dict[str, list[NDArray[Any] | None]]:
    """What was read of each group and side, put together; the spans must cover every group, once."""
    spans = whole_spans(alignment.sides) if spans is None else spans
    parts: dict[str, list[tuple[int, list[NDArray[Any] | None]]]] = {}
    with no_threads_left():
        for step in stream(checkpoints, spans, collect):
            if step.span is not None and step.result is not None:
                at = step.span.start
                for start, found in step.result:
                    assert start == at and found[0] is not None
                    at += found[0].size
                assert at == step.span.start + step.span.count
                parts.setdefault(step.span.tensor.name, []).extend(step.result)
    whole: dict[str, list[NDArray[Any] | None]] = {}
    for group in alignment.groups:
        in_order = sorted(parts.get(group.base.name, []), key=lambda part: part[0])
        columns: list[NDArray[Any] | None] = []
        for i, side in enumerate(group.sides):
            pieces = [codes[i] for _, codes in in_order]
            assert all((piece is None) == (side is None) for piece in pieces)
            kept = [piece for piece in pieces if piece is not None]
            columns.append(np.concatenate(kept) if kept else None)
        whole[group.base.name] = columns
    return whole


def check(checkpoints: Sequence[Checkpoint], expected: Sequence[State], alignment: Alignment | None = None, **options: Any) -> None:
    """Every side of every group is what ``expected`` has under the side's own name."""
    alignment = alignment or align(checkpoints[0], checkpoints[1:])
    found = assembled(checkpoints, alignment, **options)
    assert len(found) == len(alignment.groups) > 0
    for group in alignment.groups:
        for side, state, codes_read in zip(group.sides, expected, found[group.base.name], strict=True):
            if side is None:
                assert codes_read is None
                continue
            stored = state[side.name]
            wanted = bits(stored.float() if stored.dtype == torch.float64 else stored)[: side.elements]
            assert (codes_read if codes_read is not None else wanted[:0]).tobytes() == wanted.tobytes(), side.name


# Short rows, rows longer than a chunk, three axes, a vector, a scalar, nothing.
SHAPES = {
    "model.embed_tokens.weight": (37, 24),
    "model.layers.0.mlp.up_proj.weight": (300, 24),
    "model.layers.0.mlp.down_proj.weight": (3, 4100),
    "model.layers.10.experts": (3, 7, 11),
    "model.layers.2.norm.weight": (24,),
    "model.logit_scale": (),
    "model.empty": (0, 24),
}


def weights(seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    return {name: normal(1, *shape, seed=seed + i).reshape(shape).to(dtype) for i, (name, shape) in enumerate(SHAPES.items())}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of kilobytes, so that small tensors take several."""
    monkeypatch.setattr(limits, "CHUNK_BYTES", 1 << 13)
    monkeypatch.setattr(limits, "STREAM_BYTES", 1 << 16)
    monkeypatch.setattr(spans_module, "SPAN_BYTES", 9_000)


def test_shardings_orders_and_dtypes_may_differ(tmp_path: Path, small: None) -> None:
    base, first, second = weights(), weights(100, torch.float32), weights(200, torch.float16)
    second["model.layers.2.norm.weight"] = second["model.layers.2.norm.weight"].double()
    folders = [
        write_sharded(tmp_path / "base", base, 3),
        write(tmp_path / "first", dict(reversed(first.items()))),
        write_sharded(tmp_path / "second", second, 2),
    ]
    check(opened(*folders), [base, first, second])


def test_pickles_with_views(tmp_path: Path, small: None) -> None:
    base = weights()
    fused = normal(300, 72, seed=9).bfloat16()
    tuned: dict[str, torch.Tensor] = dict(weights(50))
    tuned["model.layers.0.mlp.up_proj.weight"] = fused[:, 24:48]
    tuned["model.layers.0.mlp.down_proj.weight"] = normal(4100, 3, seed=4).bfloat16().t()
    tuned["model.layers.10.experts"] = normal(11, 3, 7, seed=5).bfloat16().permute(1, 2, 0)
    tuned["model.layers.2.norm.weight"] = normal(1, seed=6).bfloat16().expand(24)
    (tmp_path / "tuned").mkdir()
    torch.save(tuned, tmp_path / "tuned" / "pytorch_model.bin")
    checkpoints = opened(write(tmp_path / "base", base), tmp_path / "tuned")
    assert sum(tensor.strides is not None for tensor in checkpoints[1].tensors) == 4
    check(checkpoints, [base, tuned])
    check(checkpoints[::-1], [tuned, base])


def test_fewer_rows_and_missing_tensors(tmp_path: Path, small: None, hub: LocalHub) -> None:
    base = {"embed_tokens.weight": normal(60, 16), "norm.weight": normal(16), "only.weight": normal(5, 5)}
    first = {"embed_tokens.weight": normal(41, 16, seed=2).bfloat16(), "norm.weight": normal(16, seed=3)}
    second = {"embed_tokens.weight": normal(70, 16, seed=4).half()}
    checkpoints = opened(*(write(tmp_path / str(i), state) for i, state in enumerate((base, first, second))))
    alignment = align(checkpoints[0], checkpoints[1:])
    assert [group.base.name for group in alignment.groups] == ["embed_tokens.weight", "norm.weight"]
    assert [group.base.shape for group in alignment.groups] == [(60, 16), (16,)]
    check(checkpoints, [base, first, second], alignment)
    few = {"embed_tokens.weight": normal(9, 16, seed=5).half()}  # the last bytes of their file
    hub.add("org/few", {"model.safetensors": OnDisk(write(tmp_path / "few", few) / "model.safetensors")})
    for last in (str(tmp_path / "few"), "org/few"):
        check(opened(tmp_path / "0", tmp_path / "1", last), [base, first, few])


def test_hub_and_local_mixed(tmp_path: Path, small: None, hub: LocalHub) -> None:
    states = [weights(), weights(5, torch.float32), weights(6)]
    folders = [write(tmp_path / str(i), state) for i, state in enumerate(states)]
    hub.add("org/tuned", {path.name: OnDisk(path) for path in folders[1].iterdir()})
    checkpoints = opened(folders[0], "org/tuned", folders[2])
    check(checkpoints, states)
    check(checkpoints[::-1], states[::-1])
    again = opened("org/tuned", folders[0])
    steps = list(stream(again, spans := whole_spans(align(again[0], again[1:]).sides), collect))
    assert steps[-1].bytes_read == sum(span.nbytes for span in spans) == sum(tensor.nbytes for each in again for tensor in each.tensors)
    assert steps[-1].requests >= len(spans)


def test_a_side_that_fails_halfway_ends_it_all(hub: LocalHub, tmp_path: Path, small: None) -> None:
    folder = write(tmp_path / "base", {"a.weight": normal(400, 64), "b.weight": normal(400, 64)})
    for i in (1, 2):
        hub.add(f"org/{i}", {"model.safetensors": OnDisk(folder / "model.safetensors")})
    checkpoints = opened(folder, "org/1", "org/2")
    spans = whole_spans(align(checkpoints[0], checkpoints[1:]).sides)
    with no_threads_left():
        steps = stream(checkpoints, spans, collect, ["Base", "Tuned 1 of 2", "Tuned 2 of 2"])
        next(steps)
        hub.fault(Fault("org/2/", times=None, ranged=True, ignore_range=True))
        with pytest.raises(HubError, match=r"^Tuned 2 of 2: [^:]*something else than bytes"):
            list(steps)


def test_a_local_file_cut_off_halfway_is_named(tmp_path: Path, small: None) -> None:
    folders = [write(tmp_path / name, {"a.weight": normal(4000, 64), "b.weight": normal(4000, 64)}) for name in ("base", "tuned")]
    checkpoints = opened(*folders)
    alignment = align(checkpoints[0], checkpoints[1:])
    steps = stream(checkpoints, whole_spans(alignment.sides), collect, ["Base", "Tuned"])
    with no_threads_left():
        next(steps)
        os.truncate(folders[1] / "model.safetensors", 5_000)
        # Readers run ahead: which of the three it is depends on how far this one is.
        with pytest.raises(InvalidCheckpoint, match=r'^Tuned: "model\.safetensors" (ends|was cut off|cannot be opened)'):
            list(steps)


def planned(tmp_path: Path, *dtypes: torch.dtype, rows: int = 3000) -> tuple[list[Checkpoint], Alignment]:
    states = [
        {f"model.layers.{i}.mlp.up_proj.weight": normal(rows, 64, seed=i).to(dtype) for i in range(3)}
        | {f"model.layers.{i}.input_layernorm.weight": normal(64, seed=i).to(dtype) for i in range(3)}
        for dtype in dtypes
    ]
    checkpoints = opened(*(write(tmp_path / str(i), state) for i, state in enumerate(states)))
    return checkpoints, align(checkpoints[0], checkpoints[1:])


def test_a_sample_is_the_same_elements_of_every_side_within_the_budget_of_the_widest(tmp_path: Path) -> None:
    checkpoints, alignment = planned(tmp_path, torch.bfloat16, torch.float32, torch.float16)
    sample, again = (Plan.sampled(alignment.sides, 300_000, 40, seed=1) for _ in range(2))
    assert sample.spans == again.spans and sample.strata == again.strata
    assert 0 < len(sample.spans) <= 40
    elements = sum(span.count for span in sample.spans)
    assert 200_000 < 4 * elements <= 300_000
    assert sample.nbytes == 8 * elements
    assert int(sample.population.sum()) == sum(group.base.elements for group in alignment.groups)
    assert len(sample.strata) == 6
    check_spans(checkpoints, alignment, sample.spans, [load_file(Path(each.ref) / "model.safetensors") for each in checkpoints])


def test_scales_count_in_the_budget_of_a_sample(tmp_path: Path) -> None:
    packed = {"a_blocks": torch.zeros(64, 256, 8, 16, dtype=torch.uint8), "a_scales": torch.full((64, 256, 8), 127, dtype=torch.uint8)}
    (checkpoint,) = opened(write(tmp_path / "packed", packed))
    sample = Plan.sampled([(tensor,) for tensor in checkpoint.tensors if not tensor.holds_scales], 100_000, 100, seed=0)
    assert 80_000 < sample.nbytes <= 100_000


def saved(folder: Path, state: State) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(dict(state), folder / "pytorch_model.bin")
    return folder


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of every read of local files from now on."""
    read: list[int] = []
    preadv = os.preadv

    def counted(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        read.append(sum(map(len, buffers)))
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", counted)
    return read


def test_a_sample_reaches_for_scattered_elements_within_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of matrices that one side stores transposed a block is spread over the whole file."""
    state = {f"{kind}.weight": normal(2000, 1500, seed=i) for i, kind in enumerate("abcdef")}
    tuned = {name: tensor.t().contiguous().t() if name < "d" else tensor for name, tensor in state.items()}
    checkpoints = opened(write(tmp_path / "base", state), saved(tmp_path / "tuned", tuned))
    alignment = align(checkpoints[0], checkpoints[1:])
    budget = 8_000_000
    sample = Plan.sampled(alignment.sides, budget, 600, seed=3)
    strata = {name[0]: stratum for name, stratum in sample.strata.items()}
    assert strata["a"] == strata["b"] == strata["c"] != strata["d"] == strata["e"] == strata["f"]
    assert sample.population[strata["a"]] == sample.population[strata["d"]] == 9_000_000
    read = counted_reads(monkeypatch)
    check_spans(checkpoints, alignment, sample.spans, [state, tuned])
    kept = {span.tensor.name[0] for span in sample.spans}
    assert kept & set("abc") and kept >= set("def")
    assert {span.count for span in sample.spans if span.tensor.name < "d"} == {256}
    assert sum(read) <= 2 * budget + sample.nbytes


def check_spans(checkpoints: Sequence[Checkpoint], alignment: Alignment, spans: Sequence[Span], states: Sequence[State]) -> None:
    """Every side of every span, in row-major order; tiles of the base's matrices."""
    bases = {group.base.name: group.base for group in alignment.groups}
    for step in stream(checkpoints, spans, collect):
        if step.span is not None and step.result is not None:
            for i, state in enumerate(states):
                span, base = step.span, bases[step.span.tensor.name]
                at = np.arange(span.start, span.start + span.count)
                if span.tensor.shape != base.shape:
                    row, column = divmod(at, span.tensor.shape[-1])
                    at = (span.tensor.offset - base.offset) // base.itemsize + row * base.shape[-1] + column
                    assert at[0] % base.shape[-1] == span.column
                wanted = bits(state[span.tensor.name])[at]
                assert b"".join(codes[i].tobytes() for _, codes in step.result if codes[i] is not None) == wanted.tobytes()  # type: ignore[union-attr]
