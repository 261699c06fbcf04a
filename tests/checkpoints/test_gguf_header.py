"""GGUF headers: what the gguf package writes and reads, what a stream hands over, and hostile files."""

import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from analyzers.checkpoints.formats.gguf_header import read_gguf
from analyzers.checkpoints.formats.safetensors_header import Header
from analyzers.core.errors import InvalidCheckpoint, MantissaError
from tests.attacks.gguf import ATTACKS, LIST, STRING, UINT32, Attack, entry, framed, items, tensor, text
from tests.checkpoints.counting_file import MemoryFile
from tests.dtype.reports import exact

Array = NDArray[Any]
PLAIN = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64}


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.02).astype(np.float32)


def written(path: Path, tensors: dict[str, tuple[Array, Kind | None]], vocabulary: int = 0, alignment: int | None = None) -> Path:
    """A file by the gguf package; with the type of arrays that are quantized already."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    if alignment:
        writer.add_custom_alignment(alignment)
    if vocabulary:
        writer.add_token_list([f"token {i}" for i in range(vocabulary)])
        writer.add_token_scores([0.5] * vocabulary)
        writer.add_array("nested.numbers", [[1, 2], [3]])
    for name, (array, kind) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantized(kind: Kind, *shape: int) -> tuple[Array, Kind]:
    return gguf.quants.quantize(normal(*shape), kind), kind


def bf16(*shape: int) -> tuple[Array, Kind]:
    return (normal(*shape).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8), Kind.BF16


def mixed() -> dict[str, tuple[Array, Kind | None]]:
    """A small model of one layer as llama.cpp names and stores it."""
    return {
        "token_embd.weight": quantized(Kind.Q8_0, 10, 64),
        "blk.0.attn_q.weight": quantized(Kind.Q4_0, 64, 64),
        "blk.0.attn_k.weight": bf16(16, 64),
        "blk.0.ffn_gate_inp.weight": (normal(4, 64), None),
        "blk.0.ffn_up_exps.weight": (normal(4, 8, 64).astype(np.float16), None),
        "blk.0.attn_norm.weight": (1 + normal(64), None),
        "output_norm.weight": (1 + normal(64), None),
        "rope_freqs.weight": (normal(32), None),
    }


def header(path: Path) -> Header:
    return read_gguf(MemoryFile(path.read_bytes(), path.name))


@pytest.mark.parametrize("alignment", [None, 8, 256])
def test_what_the_package_reads(alignment: int | None, tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", mixed(), vocabulary=500, alignment=alignment)
    found = header(path)
    reader = gguf.GGUFReader(path)
    assert len(found.tensors) == len(reader.tensors) == len(mixed())
    for ours, theirs in zip(found.tensors, reader.tensors, strict=True):
        assert (ours.name, ours.dtype) == (theirs.name, theirs.tensor_type.name)
        assert list(ours.shape) == [int(n) for n in theirs.shape][::-1]
        assert (ours.start, ours.stop - ours.start) == (theirs.data_offset, theirs.n_bytes)


kinds = st.sampled_from([*PLAIN, "Q4_0", "Q8_0"])
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


@given(st.dictionaries(names, st.tuples(kinds, shapes), min_size=1, max_size=6), st.sampled_from([8, 32, 64]), st.integers(0, 30))
def test_any_header_comes_back(described: dict[str, tuple[str, tuple[int, ...]]], alignment: int, vocabulary: int) -> None:
    tensors: dict[str, tuple[Array, Kind | None]] = {}
    for name, (kind, shape) in described.items():
        rows = (*shape[:-1], 32 * shape[-1])
        tensors[name] = (np.zeros(shape, PLAIN[kind]), None) if kind in PLAIN else quantized(Kind[kind], *rows)
    with tempfile.TemporaryDirectory() as folder:
        found = header(written(Path(folder) / "a.gguf", tensors, vocabulary, alignment))
    expected = [
        (name, kind, shape if kind in PLAIN else (*shape[:-1], 32 * shape[-1]), tensors[name][0].nbytes)
        for name, (kind, shape) in described.items()
    ]
    assert [(t.name, t.dtype, t.shape, t.stop - t.start) for t in found.tensors] == expected
    assert all(t.start % alignment == 0 for t in found.tensors)


def test_scalars_and_empty_tensors_in_version_2() -> None:
    data = framed(tensors=[tensor("scalar", []), tensor("empty", [4, 0], 32), tensor("b", [4], 32)], data=48, version=2)
    assert [(t.name, t.shape, t.stop - t.start) for t in read_gguf(MemoryFile(data)).tensors] == [
        ("scalar", (), 4), ("empty", (0, 4), 0), ("b", (4,), 16),
    ]  # fmt: skip


def test_a_long_vocabulary_takes_few_reads_and_little_memory(tmp_path: Path) -> None:
    strings = b"".join(text(f"token number {i}") for i in range(300_000))
    scores = entry("scores", LIST, items(6, 5_000_000, bytes(20_000_000)))
    data = framed([entry("tokens", LIST, items(STRING, 300_000, strings)), scores], [tensor("a", [4])], data=16)
    file = MemoryFile(data, "model.gguf")
    tracemalloc.start()
    try:
        found = read_gguf(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.tensors[0].name == "a" and len(file.reads) <= 7
    assert sum(length for _, length in file.reads) < 12_000_000, "numbers are passed over unread"
    assert peak < 10_000_000


def test_norms_do_not_answer_for_blocks(tmp_path: Path) -> None:
    """llama.cpp stores norms of bf16 models as F32: that says nothing about how the rest came to be."""
    norms = (1 + 20 * normal(2048)).view(np.uint32) & np.uint32(0xFFFF0000)
    tensors = {"output_norm.weight": (norms.view(np.float32), None), "blk.0.ffn_up.weight": quantized(Kind.Q4_0, 256, 256)}
    report = exact(written(tmp_path / "model.gguf", tensors))
    assert {row.name: row.lineage.verdict for row in report.tensors}["output_norm.weight"] == "upcast-from-bf16"
    assert (report.lineage.stored, report.lineage.verdict, report.lineage.passed_through) == ("Q4_0", "undecided", ())
    assert report.training.verdict == "undecided" and report.answer.code in ("undecided", "not-tested")


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_hostile_files_are_refused_in_one_sentence(attack: Attack) -> None:
    file = MemoryFile(attack.data, "model.gguf")
    tracemalloc.start()
    try:
        with pytest.raises(MantissaError) as error:
            read_gguf(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(error.value)
    assert message.endswith(".") and len(message) < 300 and "\n" not in message and "Traceback" not in message
    assert peak < 10_000_000


def test_truncated_at_every_byte(tmp_path: Path) -> None:
    data = written(tmp_path / "model.gguf", {"a": (normal(4), None), "b": quantized(Kind.Q4_0, 2, 32)}, vocabulary=3).read_bytes()
    end = header(tmp_path / "model.gguf").tensors[-1].stop
    for length in range(end):
        with pytest.raises(InvalidCheckpoint):
            read_gguf(MemoryFile(data[:length], "model.gguf"))
    assert len(read_gguf(MemoryFile(data[:end], "model.gguf")).tensors) == 2


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry(f"k{i}", UINT32, bytes(4)) for i in range(5)] + [entry("s", LIST, items(STRING, 3, text("a") * 3))]
    file = MemoryFile(framed(entries, [tensor("a", [4])], data=16), "model.gguf")
    assert len(read_gguf(file).tensors) == 1
    for name, value, said in (
        ("checkpoints.formats.gguf_header.GGUF_ENTRIES", 5, "or 5 entries"),
        ("checkpoints.formats.gguf_header.GGUF_STRINGS", 2, "holds more than 2 strings"),
        ("core.limits.HEADER_BYTES", 100, "header of more than 100 bytes"),
        ("core.limits.TENSOR_NAME_LENGTH", 1, "bytes, more than "),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"analyzers.{name}", value)
            with pytest.raises(MantissaError, match=said):
                read_gguf(file)
