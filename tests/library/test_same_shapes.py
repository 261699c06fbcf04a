"""Which models have tensors of the same shapes, from their stored passports."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch

from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.report import Report
from analyzers.dtype_detection import DtypeRequest, analyze
from components.library import Library
from components.library.same_shapes import fingerprint
from tests.components.dtype_reports import report
from tests.dtype_detection.checkpoints import write
from tests.parents.checkpoints import BF16, F32, Tensors, model

ALIKE = model(1)


def passport(folder: Path, tensors: Tensors) -> str:
    *_, found = analyze(DtypeRequest(model=str(write(folder, tensors)), budget=100_000), Access(local=True))
    assert isinstance(found, Report)
    return found.model_dump_json()


def shapes_of(folder: Path, tensors: Tensors) -> str:
    return fingerprint(passport(folder, tensors))


def test_what_makes_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = shapes_of(tmp_path / "a", ALIKE)
    assert len(known) == 32
    same = {
        "other weights": model(2),
        "fp32": model(1, dtype=F32),
        "renamed": {name.removeprefix("model."): tensor for name, tensor in ALIKE.items()},
        "deeper": {f"language_model.{name}": tensor for name, tensor in ALIKE.items()},
        "vocabulary": ALIKE | {"model.embed_tokens.weight": torch.zeros(700, 128, dtype=BF16)},
        "head": ALIKE | {"lm_head.weight": torch.ones(512, 128, dtype=BF16)},
        "buffer": ALIKE | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(16)},
    }
    for name, tensors in same.items():
        assert shapes_of(tmp_path / name, tensors) == known, name
    other = {
        "wider": model(1, width=64),
        "deeper": model(1, layers=5),
        "bias": ALIKE | {"model.layers.0.mlp.up_proj.bias": torch.ones(256)},
    }
    assert len({known, *(shapes_of(tmp_path / name, tensors) for name, tensors in other.items())}) == 4
    monkeypatch.setattr(limits, "REPORT_TENSORS", type(limits.REPORT_TENSORS)(3))
    aggregated = passport(tmp_path / "many", ALIKE)
    assert len(json.loads(aggregated)["tensors"]) == 3 and fingerprint(aggregated) == known


@pytest.mark.parametrize("broken", ["{}", "[]", '{"layers": 3}', '{"layers": [3]}', '{"layers": [{"role": "mlp"}]}', '{"layers": []}'])
def test_a_report_without_rows_has_none(broken: str) -> None:
    assert fingerprint(broken) == ""


def stored(library: Library, name: str, number: int, **changes: Any) -> None:
    assert library.add_result(report(name, id=f"{number:064x}", **changes), public=True, created=f"2026-11-2{number}T00:00:00.000000Z")


def test_models_alike_the_newest_first(tmp_path: Path) -> None:
    with Library.open(tmp_path) as library:
        for number, name in enumerate(("org/first", "org/second", "org/Third"), 1):
            stored(library, name, number)
        stored(library, "org/first", 4)
        shapes = library.shapes("ORG/first")
        assert shapes and library.shapes("org/unknown") == ""
        assert library.alike(shapes, "org/third", 8) == ["org/first", "org/second"]
        assert library.alike(shapes, "org/new", 2) == ["org/first", "org/Third"]
        assert library.alike("", "org/new", 8) == library.alike("0" * 32, "org/new", 8) == []


def test_a_library_of_an_older_program_gets_them(tmp_path: Path) -> None:
    with Library.open(tmp_path) as library:
        stored(library, "org/first", 1)
        shapes, before = library.shapes("org/first"), library.model("org/first")
        assert before is not None and before.wasted is not None
    with sqlite3.connect(tmp_path / "library.sqlite3") as older:
        older.execute("DROP INDEX results_shapes")
        older.execute("ALTER TABLE results DROP COLUMN shapes")
        older.execute("ALTER TABLE results DROP COLUMN bytes")
        older.execute("ALTER TABLE results DROP COLUMN wasted")
        older.execute("DELETE FROM meta WHERE name = 'own'")
        older.execute("PRAGMA user_version = 1")
    older.close()
    for _ in range(2):
        with Library.open(tmp_path) as library:
            assert library.shapes("org/first") == shapes != ""
            assert library.model("org/first") == before and library.counts().measured >= 1
            stored(library, "org/second", 2)
            assert library.alike(shapes, "org/first", 8) == ["org/second"]
