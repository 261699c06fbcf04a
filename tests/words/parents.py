"""Reports of parents: models of known descent, structure that unrelated models share, adapters, and a sample."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from analyzers.checkpoints import Access
from analyzers.comparison.parents import ParentsReport, ParentsRequest, analyze
from analyzers.core.errors import MantissaError
from analyzers.core.report import Report
from tests.dtype.checkpoints import write
from tests.parents import checkpoints as made
from tests.parents import quantized_files
from tests.parents.checkpoints import BF16, F16, F32, Tensors, model, tuned
from tests.parents.structures import SHARED, cosines, gaussian, structured
from tests.sparsity.adapters import base, factors, write_adapter
from tests.words.hostile import HOSTILE, refusal

FIRST, SECOND, THIRD = (model(seed, width=64, vocabulary=256) for seed in (10, 11, 12))
UP = "model.layers.1.mlp.up_proj.weight"
QUERY = "model.layers.1.self_attn.q_proj.weight"
SIBLINGS = tuned(FIRST, 0.05, 21), tuned(FIRST, 0.05, 22)
NEAR = tuned(FIRST, 1e-3, 20), tuned(FIRST, 1e-3, 21)
FLOAT = model(10, width=64, vocabulary=256, dtype=F32)
SMALL = made.each(lambda x: x * 1e-2, FIRST)
TABLE = {"model.mixing.weight": torch.from_numpy(cosines(np.random.default_rng(1), 256, 256)).to(BF16)}


def reports() -> dict[str, Report | MantissaError]:
    """Make the reports; the names say what is special about each."""
    with in_a_folder():
        spoiled = explained(damaged(FIRST), FIRST, mode="exact")
        return {
            "a fine-tune": explained(tuned(FIRST, 0.05), FIRST, SECOND),
            "a copy in fp32": explained(made.each(lambda x: x, FIRST, dtype=F32), FIRST, mode="exact"),
            "a copy, by a sample": explained(FIRST, FIRST, budget=60_000),
            "a copy rounded to fp16": explained({name: tensor.to(F16) for name, tensor in SMALL.items()}, SMALL),
            "two copies, rounded to fp16 and to bf16": explained(
                *({name: tensor.to(to) for name, tensor in FLOAT.items()} for to in (F16, BF16))
            ),
            "a copy and more": explained(FIRST | {"model.extra.weight": torch.ones(64, 64, dtype=BF16)}, FIRST),
            "layers repeated": explained(made.stacked((FIRST, 0, 3), (FIRST, 1, 4)), FIRST),
            "layers repeated and trained": explained(tuned(made.stacked((FIRST, 0, 3), (FIRST, 1, 4)), 0.01), FIRST),
            "int8 of the source": explained(made.int8(FIRST), FIRST, SECOND),
            "fp8 of the source but for one value": explained(in_fp8(FIRST), FIRST, mode="exact"),
            "of similar candidates": explained(tuned(FIRST, 0.05, 30), *NEAR, FIRST),
            "pruned": explained(made.each(lambda x: x * (x.abs() > 0.01), FIRST), FIRST),
            "another norm": explained(FIRST | {"model.norm.weight": SECOND["model.norm.weight"]}, FIRST),
            "damaged": spoiled,
            "norms of one and permuted neurons": explained(untrained(made.permuted(FIRST)), FIRST),
            "one matrix replaced": explained(tuned(FIRST, 0.02) | {UP: SECOND[UP]}, FIRST),
            "base of a pruned one": explained(FIRST, made.each(lambda x: x * (x.abs() > 0.01), FIRST)),
            "rows in another order": explained(FIRST | {UP: FIRST[UP].roll(1, 0)}, FIRST, mode="exact"),
            "norms stored plus one": explained(FIRST | plus_one(SECOND), FIRST | less_one(SECOND), mode="exact"),
            "without scales of blocks": explained(FIRST | {UP: unscaled(FIRST[UP])}, FIRST, mode="exact"),
            "NaN in the candidate": explained(FIRST, FIRST | {UP: FIRST[UP] * torch.where(torch.arange(64) == 3, torch.nan, 1.0).to(BF16)}),
            "two versions mixed": explained(mixed(FIRST, SIBLINGS[0]), FIRST, SIBLINGS[0], mode="exact"),
            "a merge": explained(made.merged((0.7, 0.3), FIRST, SECOND), FIRST, SECOND, THIRD),
            "a merge with weights by layer": explained(by_layer(), FIRST, SECOND),
            "a merge in fp32 by noise": explained(noisy(made.merged((0.6, 0.4), FIRST, SECOND, dtype=F32)), FIRST, SECOND),
            "a merge of siblings by noise": explained(noisy(made.merged((0.6, 0.4), *SIBLINGS)), *SIBLINGS),
            "a merge and more": explained(tuned(made.merged((0.6, 0.4), FIRST, SECOND), 0.05), FIRST, SECOND),
            "a merge trained on in one layer": explained(trained_on(), FIRST, SECOND),
            "a merge of twins": explained(made.merged((0.5, 0.5), FIRST, SECOND), FIRST, twin(FIRST), SECOND),
            "a merge of siblings with a constant": explained(
                made.merged((0.4, 0.6), *SIBLINGS) | {UP: torch.full_like(FIRST[UP], 0.5)}, *SIBLINGS
            ),
            "a stack": explained(made.stacked((FIRST, 0, 3), (SECOND, 1, 4)), FIRST, SECOND),
            "a stack trained on": explained(tuned(made.stacked((FIRST, 0, 2), (SECOND, 2, 4)), 0.01), FIRST, SECOND),
            "unrelated": explained(THIRD, FIRST, SECOND),
            "too few values": explained({UP: torch.eye(16)}, {UP: torch.eye(16)}),
            "common values": explained({UP: torch.eye(64), "model.extra.weight": torch.ones(64, 64)}, {UP: torch.eye(64)}),
            "zeros": explained({name: torch.zeros_like(tensor) for name, tensor in FIRST.items()}, FIRST),
            "a shared table": explained(structured(gaussian, 3) | TABLE, structured(gaussian, 4) | TABLE, budget=150_000),
            "a shared structure": explained(*(structured(SHARED[0], seed, layers=2) for seed in (3, 4)), mode="exact"),
            "slightly similar": explained(made.each(lambda x, y: x + 0.1 * y, THIRD, FIRST), FIRST),
            **quantized(),
            **with_adapters(),
            "a candidate without matrices": explained(FIRST, FIRST, {name: x for name, x in FIRST.items() if x.dim() == 1}),
            "candidates of other sizes": explained(tuned(FIRST, 0.05), FIRST, model(12, width=64, vocabulary=200)),
            "hostile names": hostile(spoiled),
            "error": refusal(lambda: explained(FIRST, {f"other.{name}": tensor[:7] for name, tensor in FIRST.items()})),
        }


@contextmanager
def in_a_folder() -> Iterator[None]:
    """Work in an empty folder."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def explained(child: Tensors, *candidates: Tensors, **options: Any) -> ParentsReport:
    """Write the checkpoints and return the report on the first one."""
    for number, tensors in enumerate((child, *candidates)):
        write(Path("child" if not number else f"parent-{number}"), tensors)
    return asked("./child", *(f"./parent-{number}" for number in range(1, len(candidates) + 1)), **options)


def asked(name: str, *candidates: str, **options: Any) -> ParentsReport:
    """Return the report on a checkpoint of this folder."""
    *_, report = analyze(ParentsRequest(model=name, candidates=candidates, **options), Access(local=True))
    assert isinstance(report, ParentsReport)
    return ParentsReport.model_validate_json(report.model_dump_json().replace(str(Path.cwd()), "."))  # as in every other folder


def quantized() -> dict[str, Report | MantissaError]:
    """Explain quantized files."""
    write(Path("source"), FIRST)
    lost = FIRST[QUERY].clone()
    lost[:, 5] = FIRST[QUERY][:, 9].roll(3)
    lacking = {name: tensor for name, tensor in FIRST.items() if "embed" not in name}
    paths = {
        "nearest": quantized_files.ggml(Path("q4"), FIRST, "Q4_0"),
        "calibrated": quantized_files.gptq(Path("gptq"), FIRST),
        "scaled channels": quantized_files.awq(Path("awq"), FIRST),
        "no grid": quantized_files.ggml(Path("iq4"), FIRST, "IQ4_NL"),
        "a tensor of another model": quantized_files.ggml(Path("damaged"), FIRST | {UP: SECOND[UP]}, "Q8_0"),
        "of a fine-tune": quantized_files.ggml(Path("tuned"), SIBLINGS[0], "Q8_0"),
        "calibrated, of a fine-tune": quantized_files.gptq(Path("tuned-gptq"), tuned(FIRST, 0.03, 3)),
        "a channel lost": quantized_files.awq(Path("lost"), FIRST | {QUERY: lost}),
        "without the embedding": quantized_files.gptq(Path("lacking"), lacking, calibrated=False),
    }
    return {
        **{f"quantized, {name}": asked(f"./{path}", "./source", mode="exact") for name, path in paths.items()},
        "quantized, siblings": asked(f"./{paths['nearest']}", f"./{paths['calibrated']}", mode="exact"),
        "quantized, a sample": asked("./lacking", "./source", budget=60_000),
    }


def with_adapters() -> dict[str, Report | MantissaError]:
    """Explain a base with adapters: merged, next to it, and those of another model."""
    path, tensors = base(Path("models"))
    first = write_adapter(Path("first"), factors(tensors, 1e-3, "q_proj", seed=1))
    beside = dict(FIRST) | {
        f"base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.default.weight": torch.ones(shape, dtype=BF16)
        for side, shape in (("A", (4, 64)), ("B", (64, 4)))
    }
    return {
        "a merged adapter": asked(f"./{path}+./{first}", f"./{path}"),
        "an adapter next to the base": explained(beside, FIRST),
        "a card that names a missing model": of_card(f"./{path}+./{first}", path),
    }


def of_card(name: str, path: Path) -> ParentsReport:
    """Explain a base with an adapter, whose card names a model that does not exist."""
    (path / "README.md").write_text("---\nbase_model: sample/none/at/all, nobody/here\n---\n")
    return asked(name)


def in_fp8(tensors: Tensors) -> Tensors:
    """Store matrices as codes of E4M3 with a scale, one of them as another code."""
    copy: Tensors = {}
    for name, x in tensors.items():
        scale = x.to(F32).abs().max() / 448
        copy |= {name: (x.to(F32) / scale).to(torch.float8_e4m3fn), f"{name}_scale": scale} if x.dim() > 1 else {name: x}
    copy[UP].view(torch.uint8)[0, 0] ^= 8
    return copy


def untrained(tensors: Tensors) -> Tensors:
    moved = tuned(tensors, 0.01)
    return moved | {name: torch.ones_like(tensor) for name, tensor in moved.items() if tensor.dim() == 1}


def damaged(tensors: Tensors) -> Tensors:
    """Spoil some tensors, each in another way."""
    names = [name for name in tensors if "proj" in name]
    spoiled = {name: tensor.clone() for name, tensor in tensors.items()}
    spoiled[names[0]][:] = 0
    spoiled[names[1]] = tensors[names[5]].clone()
    spoiled[names[2]][3, :5] = float("nan")
    spoiled[names[3]] = (0.5 * tensors[names[3]].to(F32)).to(BF16)
    spoiled[names[7]][10:] = SECOND[names[7]][10:]
    spoiled[names[8]][:] = 0.25
    spoiled[names[9]][5:] = 0
    spoiled[names[10]].view(-1)[::50] = 0
    return spoiled


def plus_one(tensors: Tensors) -> Tensors:
    return {name: (torch.linspace(-0.5, 0.5, x.numel()) + 1).to(BF16) for name, x in tensors.items() if x.dim() == 1}


def less_one(tensors: Tensors) -> Tensors:
    return {name: torch.linspace(-0.5, 0.5, x.numel()).to(BF16) for name, x in tensors.items() if x.dim() == 1}


def unscaled(x: torch.Tensor) -> torch.Tensor:
    scales = torch.linspace(50, 100, x.numel() // 32).repeat_interleave(32).reshape(x.shape)
    return (x.to(F32) * scales).to(BF16)


def mixed(first: Tensors, second: Tensors) -> Tensors:
    return {name: (first if number % 2 else second)[name] for number, name in enumerate(first)}


def by_layer() -> Tensors:
    child = dict(FIRST)
    for layer in range(4):
        names = [name for name in FIRST if f".layers.{layer}." in name]
        weight = 0.1 + 0.25 * layer
        child |= made.merged((weight, 1 - weight), {name: FIRST[name] for name in names}, {name: SECOND[name] for name in names})
    return child


def noisy(tensors: Tensors) -> Tensors:
    """Add about as much noise as rounding to bf16 does, and round."""
    generator = torch.Generator().manual_seed(1)
    return made.each(lambda x: x * (1 + 2**-10 * torch.randn(x.shape, generator=generator)), tensors)


def trained_on() -> Tensors:
    child = made.merged((0.6, 0.4), FIRST, SECOND)
    return child | {name: tensor for name, tensor in tuned(child, 0.05, 7).items() if ".layers.2." in name}


def twin(tensors: Tensors) -> Tensors:
    return {**tensors, "model.norm.weight": tensors["model.norm.weight"] + 1}


def hostile(report: ParentsReport) -> ParentsReport:
    """Return the report with markup and control characters wherever text comes from outside."""
    best = report.candidates[0].model_copy(update={"ref": HOSTILE})
    row = report.conversion[0].model_copy(update={"name": HOSTILE, "sources": (HOSTILE,), "relation": "zero"})
    return report.model_copy(
        update={
            "checkpoint": report.checkpoint.model_copy(update={"ref": HOSTILE}),
            "parents": (HOSTILE,),
            "candidates": (best, *report.candidates[1:]),
            "conversion": (row, *report.conversion[1:]),
            "answer": report.answer.model_copy(update={"text": f"{HOSTILE} is derived from {HOSTILE}."}),
        }
    )
