"""BASE@REV+ADAPTER@REV from a Hub: the same answers as from local copies of these revisions."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load, save

from analyzers.check import CheckRequest
from analyzers.check import analyze as check
from analyzers.checkpoints import Access
from analyzers.checkpoints.local import sample_folder
from analyzers.comparison.sparsity import SparsityRequest
from analyzers.comparison.sparsity import analyze as sparsity
from analyzers.core.errors import MantissaError
from analyzers.dtype import DtypeRequest
from analyzers.dtype import analyze as dtype
from analyzers.write.merge import merge
from tests.hub import LocalHub

_ADAPTER = "adapter_model.safetensors"


def _files(sample: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sample_folder(sample).iterdir()}


@pytest.fixture
def models(hub: LocalHub, tmp_path: Path) -> Path:
    """Two revisions of a base and of an adapter: v1, which is also written to local folders, and a later main."""
    base, adapter = _files("tiny-bf16"), _files("tiny-adapter")
    adapter["adapter_config.json"] = json.dumps(
        json.loads(adapter["adapter_config.json"]) | {"base_model_name_or_path": "org/base", "revision": "v1"}
    ).encode()
    for name, files in (("base", base), ("adapter", adapter)):
        (tmp_path / name).mkdir()
        for path, data in files.items():
            (tmp_path / name / path).write_bytes(data)
        hub.tag(f"org/{name}", "v1", hub.add(f"org/{name}", files))
    hub.commit("org/base", _files("tiny-tuned"))
    hub.commit("org/adapter", {_ADAPTER: save({name: 2 * tensor for name, tensor in load(adapter[_ADAPTER]).items()})})
    return tmp_path


def _last(items: Iterator[object]) -> Any:
    *_, last = items
    return last


def test_weights(models: Path) -> None:
    """Other revisions have other values: the later adapter changes four times as much."""
    mode: Any = "quick"
    access, here, there = Access(local=True), f"{models}/base+{models}/adapter", "org/base@v1+org/adapter@v1"
    first, second = (_last(dtype(DtypeRequest(model=model, mode=mode), access)) for model in (here, there))
    assert (first.extremes, first.storage) == (second.extremes, second.storage)
    pairs = [(f"{models}/base", f"{models}/adapter"), ("org/base@v1", "org/adapter@v1"), ("org/base@v1", there)]
    reports = [_last(sparsity(SparsityRequest(base=base, tuned=(tuned,), mode=mode), access)) for base, tuned in pairs]
    for report in reports[1:]:
        assert (report.num_changed, report.magnitudes) == (reports[0].num_changed, reports[0].magnitudes)
        assert (report.adapter.survival, report.adapter.modules) == (reports[0].adapter.survival, reports[0].adapter.modules)
    assert reports[1].id == reports[2].id
    commits = [commit[:12] for commit in reports[1].tuned[0].commit.split("+")]
    assert len({*commits}) == 2 and reports[1].tuned[0].short_commit() == "+".join(commits)
    other = _last(sparsity(SparsityRequest(base="org/base@v1", tuned=("org/adapter",), mode=mode), access))
    assert other.magnitudes != reports[0].magnitudes


def test_gated_base(hub: LocalHub, models: Path, tmp_path: Path) -> None:
    """Its adapter is public: what needs the base asks for its licence, and nothing of the result is public."""
    hub.add("org/gated", _files("tiny-bf16"), gated="auto")
    hub.user("hf_visitor", "visitor", ["org/gated"])
    model, visitor = "org/gated+org/adapter@v1", Access(token="hf_visitor")
    request = DtypeRequest(model=model)
    for run in (lambda: dtype(request), lambda: check(CheckRequest(model=model)), lambda: merge(model, str(tmp_path / "merged"))):
        with pytest.raises(MantissaError, match="org/gated is gated"):
            _last(run())
    assert not (tmp_path / "merged").exists()
    assert not _last(dtype(request, visitor)).checkpoint.public
    assert _last(merge(model, str(tmp_path / "merged"), access=visitor)).computed
