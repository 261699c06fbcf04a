"""The Python API: the answers are those of the command line, of models in memory too."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import mantissa
from analyzers.checkpoints import LocalRepository, read_range
from analyzers.core.errors import InvalidRequest
from analyzers.core.report import Report
from analyzers.core.request import Progress
from analyzers.dtype import DtypeReport
from analyzers.language_models.samples import sample_folder
from analyzers.write.report import ShrinkReport
from mantissa.models_in_memory import in_memory

SAMPLE = sample_folder("tiny-bf16")
SMALL_EXIT: Mapping[str, Any] = {"samples": 2, "seeds": 1, "sweep": False}


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(SAMPLE)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(SAMPLE)


def findings(report: Report) -> dict[str, Any]:
    """Everything but what the model is called, times, and the advice, which has both."""
    named = {"id", "request", "checkpoint", "base", "tuned", "timing", "environment", "cost", "advice"}
    content = report.model_dump(mode="json", exclude=named)
    for coverage in content.get("coverage", ()):
        del coverage["ref"]
    for method in content.get("methods", {}).values():
        method.update(dict.fromkeys(("seconds", "peak_bytes")))
    return content


def test_a_stream_is_progress_and_then_the_report() -> None:
    items = list(mantissa.stream("dtype", model="sample:tiny-bf16", include="mlp"))
    assert all(isinstance(item, Progress) for item in items[:-1])
    report = items[-1]
    assert isinstance(report, DtypeReport) and report.id == mantissa.dtype("sample:tiny-bf16", include="mlp").id
    stopped = mantissa.stream("sparsity", base="sample:tiny-bf16", tuned=("sample:tiny-tuned",))
    next(stopped)
    cast(Any, stopped).close()
    with pytest.raises(InvalidRequest, match="inclde"):
        mantissa.dtype("sample:tiny-bf16", inclde="mlp")


def test_memory_is_the_file_that_saving_would_write(model: Any, tmp_path: Path) -> None:
    state = {"b": torch.randn(3, 5), "a": torch.randn(7).bfloat16(), "c": torch.arange(5), "é": torch.tensor(1.5).double()}
    file = in_memory("x", state).open("model.safetensors")
    assert read_range(file, 0, file.size) == save(state, {"format": "pt"})
    assert read_range(file, file.size - 21, 9) == save(state, {"format": "pt"})[-21:-12]  # across two tensors
    model.save_pretrained(tmp_path)
    assert in_memory("x", model).commit == LocalRepository(tmp_path).commit


def test_weights_in_memory_give_the_report_of_their_path(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "model")
    save_file(model.model.state_dict(), tmp_path / "state.safetensors")
    memory = mantissa.dtype(model)
    assert findings(memory) == findings(mantissa.dtype(tmp_path / "model"))
    assert memory.checkpoint.ref == "memory:LlamaForCausalLM" and not memory.checkpoint.public
    assert findings(mantissa.dtype(model.model.state_dict())) == findings(mantissa.dtype(tmp_path / "state.safetensors"))


def test_check_and_shrink(model: Any, tmp_path: Path) -> None:
    """A wide copy in memory wastes half, next to its base nothing was trained; shrunk on disk it is the base."""
    wide = {name: tensor.float() for name, tensor in model.state_dict().items()}
    found = mantissa.check(wide, model)
    assert {"upcast", "unchanged"} <= {each.rule for each in found.findings} and found.fails("error")
    report = mantissa.shrink("sample:tiny-bf16-as-fp32", tmp_path / "out")
    assert isinstance(report, ShrinkReport) and mantissa.check(tmp_path / "out").saving_bytes == 0
    with pytest.raises(InvalidRequest, match="exists already"):
        mantissa.shrink("sample:tiny-bf16-as-fp32", tmp_path / "out")


@pytest.mark.parametrize(
    ("question", "options"),
    [
        (mantissa.conflict, {"samples": 4}),
        (mantissa.precision, {"sequence_length": 16, "variants": ("bf16",)}),
        (mantissa.exit, SMALL_EXIT),
    ],
    ids=["conflict", "precision", "exit"],
)
def test_a_model_in_memory_gives_the_report_of_its_path(question: Any, options: Any, model: Any, tokenizer: Any) -> None:
    before = [(parameter.clone(), parameter.requires_grad) for parameter in model.train().parameters()]
    memory = question(model, tokenizer=tokenizer, **options)
    assert findings(memory) == findings(question(SAMPLE, **options))
    assert model.training and all(module.training and not module._forward_hooks for module in model.modules())
    assert all(torch.equal(p, old) and p.requires_grad == grad for p, (old, grad) in zip(model.parameters(), before, strict=True))


def test_token_ids_replace_a_tokenizer(model: Any, tokenizer: Any) -> None:
    by_text = mantissa.conflict(model, tokenizer=tokenizer, samples=4)
    ids, starts = [each.token_ids for each in by_text.samples], [each.answer_start for each in by_text.samples]
    by_ids = mantissa.conflict(model, token_ids=ids, answer_starts=starts)
    assert [each.conflict_rate for each in by_ids.layers] == [each.conflict_rate for each in by_text.layers]
    assert (by_ids.data.source, by_ids.data.samples) == ("tokens", 4)
    assert all(note.code != "few-samples" for note in by_ids.notes)
    assert mantissa.precision(model, token_ids=[[1, 2, 3], [4, 5, 6]], variants=("bf16",)).inputs.token_ids == ((1, 2, 3), (4, 5, 6))
    assert mantissa.exit(model, token_ids=ids, answer_starts=starts, seeds=1, sweep=False).inputs.answer_starts == tuple(starts)


def test_weights_that_are_left_out_of_a_file_are_left_out_in_memory(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    plain = {
        "model.embed_tokens.weight": torch.randn(64, 32, generator=generator),
        "imaginary.weight": torch.randn(4, 4, generator=generator),
    }
    odd = {
        "complex.weight": torch.randn(4, 4, dtype=torch.complex64, generator=generator),
        **{f"{kind}.weight": torch.arange(16).to(kind) for kind in (torch.uint16, torch.uint32, torch.uint64, torch.float8_e8m0fnu)},
    }
    save_file(plain | odd, tmp_path / "model.safetensors")
    lazily_negated = torch.complex(plain["imaginary.weight"], -plain["imaginary.weight"]).conj().imag
    report = mantissa.dtype(
        plain | odd | {"imaginary.weight": lazily_negated, "complex.weight": odd["complex.weight"].conj().resolve_conj().conj()}
    )
    assert findings(report) == findings(mantissa.dtype(tmp_path))


@pytest.mark.parametrize("change", [{"schema_version": 9}, {"analyzer": "colour"}, {"future": 1}, None])
def test_a_report_of_another_version_is_refused(change: dict[str, Any] | None) -> None:
    content = "{" if change is None else json.dumps(json.loads(mantissa.dtype("sample:tiny-bf16").model_dump_json()) | change)
    with pytest.raises(InvalidRequest):
        mantissa.read_report(content)


def test_asking_about_files_loads_no_torch() -> None:
    program = "import sys, mantissa; mantissa.dtype('sample:tiny-bf16'); print('torch' in sys.modules, 'transformers' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=True)
    assert run.stdout == "False False\n"
