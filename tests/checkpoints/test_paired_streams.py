"""Several checkpoints as one stream: every element of every side as the libraries read it, whatever they are stored in."""

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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
from analyzers.core.errors import CheckpointNotFound, HubError, InvalidCheckpoint, InvalidRequest, MantissaError
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


def positive(*shape: int) -> torch.Tensor:
    """Scales."""
    return torch.from_numpy(np.random.default_rng(7).uniform(1e-4, 3e-4, shape).astype(np.float32))


def expanded(scales: torch.Tensor, shape: tuple[int, int], block: tuple[int, int]) -> torch.Tensor:
    """Scales, each repeated over its block and cut off at the edges."""
    return scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[: shape[0], : shape[1]]


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


def test_scaled_weights_against_plain_ones(tmp_path: Path, small: None) -> None:
    stored, scales = normal(200, 300, scale=30).to(torch.float8_e4m3fn), positive(2, 3)
    rows, per_row = normal(40, 1000, scale=30).to(torch.float8_e5m2), positive(40, 1)
    base = {"a.weight": normal(200, 300).bfloat16(), "b.weight": normal(40, 1000).float()}
    tuned = {"a.weight": stored, "a.weight_scale_inv": scales, "b.weight": rows, "b.weight_scale": per_row}
    values = {"a.weight": stored.float() * expanded(scales, (200, 300), (128, 128)), "b.weight": rows.float() * per_row}
    checkpoints = opened(write(tmp_path / "base", base), write(tmp_path / "tuned", tuned))
    check(checkpoints, [base, values])
    check([checkpoints[1], checkpoints[1]], [values, values])


def test_fp4_packed_on_one_side(tmp_path: Path, small: None) -> None:
    rng = np.random.default_rng(5)
    packed, exponents = rng.integers(0, 256, (2, 24, 8, 16), dtype=np.uint8), rng.integers(110, 130, (2, 24, 8), dtype=np.uint8)
    halves = np.stack((packed & 15, packed >> 4), -1).reshape(2, 24, 8, 32)  # the low half of a byte is first
    values = np.where(halves & 8, -1, 1) * np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[halves & 7]
    expected = torch.from_numpy((values * 2.0 ** (exponents[..., None].astype(int) - 127)).reshape(2, 24, 256).astype(np.float32))
    blocks, scales = torch.from_numpy(packed), torch.from_numpy(exponents)
    name = "model.layers.0.mlp.experts.down_proj"
    base = {name: normal(2, 24, 256).bfloat16()}
    checkpoints = opened(write(tmp_path / "base", base), write(tmp_path / "tuned", {f"{name}_blocks": blocks, f"{name}_scales": scales}))
    check(checkpoints, [base, {name: expected}])
    alignment = align(checkpoints[0], checkpoints[1:])
    odd = [Span(alignment.sides[0], start, min(777, 2 * 24 * 256 - start)) for start in range(0, 2 * 24 * 256, 777)]
    check(checkpoints, [base, {name: expected}], alignment, spans=odd)


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


@given(data=st.data())
def test_any_part_of_any_group(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "any-part"
    states = [weights(), weights(7, torch.float32), weights(9, torch.float8_e5m2)]
    if not folder.exists():
        for i, state in enumerate(states):
            write(folder / str(i), state)
    checkpoints = opened(*(folder / str(i) for i in range(3)))
    alignment = align(checkpoints[0], checkpoints[1:])
    number = data.draw(st.integers(0, len(alignment.groups) - 1))
    elements = alignment.groups[number].base.elements
    start = data.draw(st.integers(0, max(elements - 1, 0)))
    count = data.draw(st.integers(0, elements - start))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CHUNK_BYTES", data.draw(st.integers(64, 5_000)))
        patch.setattr(limits, "STREAM_BYTES", data.draw(st.integers(500, 50_000)))
        (step,) = [s for s in stream(checkpoints, [Span(alignment.sides[number], start, count)], collect) if s.span is not None]
    assert step.result is not None
    for i, state in enumerate(states):
        found = [part[i] for _, part in step.result]
        expected = bits(state[alignment.groups[number].base.name])[start : start + count]
        assert b"".join(piece.tobytes() for piece in found if piece is not None) == expected.tobytes()


def starts(checkpoints: Sequence[Checkpoint], alignment: Alignment) -> list[tuple[str, int]]:
    """Where chunks begin."""

    def note(span: Span, chunks: Iterator[Chunk]) -> list[tuple[str, int]]:
        return [(span.tensor.name, chunk.start) for chunk in chunks]

    spans = whole_spans(alignment.sides)
    return sorted(each for step in stream(checkpoints, spans, note) for each in step.result or [])


def test_chunks_hold_whole_rows_and_lie_the_same_wherever_the_checkpoints_are(tmp_path: Path, small: None, hub: LocalHub) -> None:
    folders = [write(tmp_path / "base", weights()), write_sharded(tmp_path / "tuned", weights(5, torch.float32), 2)]
    for folder in folders:
        hub.add(f"org/{folder.name}", {path.name: OnDisk(path) for path in folder.iterdir()})
    local = opened(*folders)
    alignment = align(local[0], local[1:])
    found = starts(local, alignment)
    shapes = {group.base.name: group.base.shape for group in alignment.groups}
    for name, start in found:
        row = shapes[name][-1:] or (1,)
        assert start % row[0] == 0 or row[0] == 4100
    assert len({name for name, _ in found}) == 6 and len(found) > 12
    remote = opened("org/base", "org/tuned")
    assert starts(remote, align(remote[0], remote[1:])) == found
    assert starts([local[0], remote[1]], align(local[0], [remote[1]])) == found


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


def test_what_is_in_flight_stays_within_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: LocalHub) -> None:
    """Buffers, and what is asked of the Hub at once, for 2 to 20 checkpoints."""
    state = {"a.weight": normal(300, 256).bfloat16(), "b.weight": normal(64, 512)}
    folder = write(tmp_path / "one", state)
    hub.add("org/one", {path.name: OnDisk(path) for path in folder.iterdir()})
    monkeypatch.setattr(limits, "STREAM_BYTES", 1 << 18)
    monkeypatch.setattr(limits, "CHUNK_BYTES", 1 << 14)
    monkeypatch.setattr(spans_module, "SPAN_BYTES", 1 << 15)
    made: list[int] = []

    def buffer(size: int, device: str) -> NDArray[np.uint8]:
        made.append(size)
        return np.empty(size, np.uint8)

    monkeypatch.setattr(stream_module, "stream_buffer", buffer)
    for number in (2, 5, 20):
        made.clear()
        checkpoints = opened(folder, *["org/one"] * (number - 1))
        check(checkpoints, [state] * number)
        assert made and sum(made) <= 1 << 18


def hub_sides(hub: LocalHub, tmp_path: Path, state: State, tuned: int) -> list[Checkpoint]:
    """The base in a folder, the others on the Hub as org/1, org/2."""
    folder = write(tmp_path / "base", state)
    for i in range(tuned):
        hub.add(f"org/{i + 1}", {"model.safetensors": OnDisk(folder / "model.safetensors")})
    return opened(folder, *(f"org/{i + 1}" for i in range(tuned)))


FAILURES: dict[str, tuple[dict[str, Any], type[MantissaError], str]] = {
    "gone": ({"status": 404}, CheckpointNotFound, "not found"),
    "no range": ({"ignore_range": True}, HubError, "something else than bytes"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_side_that_fails_halfway_ends_it_all(
    failure: str, hub: LocalHub, tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    what, error, said = FAILURES[failure]
    monkeypatch.setattr("analyzers.checkpoints.hub.replies.HUB_ATTEMPTS", 1)
    checkpoints = hub_sides(hub, tmp_path, {"a.weight": normal(400, 64), "b.weight": normal(400, 64)}, 2)
    alignment = align(checkpoints[0], checkpoints[1:])
    names = ["Base", "Tuned 1 of 2", "Tuned 2 of 2"]
    steps = stream(checkpoints, whole_spans(alignment.sides), collect, names)
    with no_threads_left():
        next(steps)
        hub.fault(Fault("org/2/", times=None, ranged=True, **what))
        started = time.monotonic()
        with pytest.raises(error, match=rf"^Tuned 2 of 2: [^:]*{said}"):
            list(steps)
        assert time.monotonic() - started < 150


def test_a_side_that_hangs_can_be_left(hub: LocalHub, tmp_path: Path, small: None) -> None:
    checkpoints = hub_sides(hub, tmp_path, {"a.weight": normal(400, 64)}, 2)
    alignment = align(checkpoints[0], checkpoints[1:])
    hub.fault(Fault("org/1/", times=None, ranged=True, hang=True))
    with no_threads_left():
        steps = stream(checkpoints, whole_spans(alignment.sides), collect)
        assert next(steps).span is None
        started = time.monotonic()
        steps.close()  # type: ignore[attr-defined]
        assert time.monotonic() - started < 150  # it hangs for ever


def test_a_local_file_cut_off_halfway_is_named(tmp_path: Path, small: None) -> None:
    folders = [write(tmp_path / name, {"a.weight": normal(4000, 64), "b.weight": normal(4000, 64)}) for name in ("base", "tuned")]
    checkpoints = opened(*folders)
    alignment = align(checkpoints[0], checkpoints[1:])
    steps = stream(checkpoints, whole_spans(alignment.sides), collect, ["Base", "Tuned"])
    with no_threads_left():
        next(steps)
        os.truncate(folders[1] / "model.safetensors", 5_000)
        # Readers run ahead: which of the three it is depends on how far this one is.
        with pytest.raises(InvalidCheckpoint, match=r'^Tuned: "model\.safetensors" (ends|was cut off|can no longer be read)'):
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


def saved(folder: Path, state: State) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(dict(state), folder / "pytorch_model.bin")
    return folder


def test_a_sample_of_views_that_are_stored_alike_is_read_along_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [{"a.weight": normal(2000, 1500, seed=i).bfloat16().t(), "b.weight": normal(1500, 2000, seed=i).bfloat16()} for i in (1, 2)]
    checkpoints = opened(*(saved(tmp_path / str(i), state) for i, state in enumerate(states)))
    alignment = align(checkpoints[0], checkpoints[1:])
    sample = Plan.sampled(alignment.sides, 1 << 18, 20, seed=0)
    read = counted_reads(monkeypatch)
    steps = [s for s in stream(checkpoints, sample.spans, collect) if s.span is not None]
    assert sum(read) == sample.nbytes <= 1 << 19
    assert {step.span.tensor.shape for step in steps if step.span} == {(2000, 1500), (1500, 2000)}
    for step in steps:
        assert step.span is not None and step.result is not None
        for i, state in enumerate(states):
            span, tensor = step.span, state[step.span.tensor.name]
            wanted = bits(tensor.t() if span.tensor.name == "a.weight" else tensor)[span.start : span.start + span.count]
            assert np.concatenate([codes[i] for _, codes in step.result]).tobytes() == wanted.tobytes()


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


def test_a_sample_of_everything_covers_it(tmp_path: Path) -> None:
    checkpoints, alignment = planned(tmp_path, torch.bfloat16, torch.bfloat16, rows=100)
    sample = Plan.sampled(alignment.sides, 1 << 20, 100, seed=0)
    assert sorted((span.tensor.name, span.start, span.count) for span in sample.spans) == sorted(
        (group.base.name, 0, group.base.elements) for group in alignment.groups
    )
    with pytest.raises(InvalidRequest, match="at least 1 byte"):
        Plan.sampled(alignment.sides, 0, 1, seed=0)
    check(checkpoints, [load_file(Path(each.ref) / "model.safetensors") for each in checkpoints], alignment, spans=sample.spans)
