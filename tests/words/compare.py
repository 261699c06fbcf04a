"""Reports of compare: a fine-tune by everything and by a sample, a merge among others, unrelated models, an adapter."""

from pathlib import Path
from typing import Any

import torch

from analyzers.checkpoints import Access
from analyzers.comparison.compare import CompareReport, CompareRequest, analyze
from analyzers.comparison.compare.words import WORDS
from analyzers.core.errors import MantissaError
from analyzers.core.report import Report
from tests.dtype.checkpoints import write
from tests.parents import checkpoints as made
from tests.parents import quantized_files
from tests.parents.checkpoints import BF16, Tensors, tuned
from tests.sparsity.adapters import base, factors, write_adapter
from tests.words.hostile import HOSTILE, refusal
from tests.words.parents import FIRST, SECOND, THIRD, in_a_folder

CHILD = tuned(FIRST, 0.01)


def reports() -> dict[str, Report | MantissaError]:
    """Make the reports; the names say what is special about each."""
    with in_a_folder():
        full = compared(FIRST, CHILD, mode="exact")
        path, tensors = base(Path("models"))
        adapter = write_adapter(Path("adapter"), factors(tensors, 1e-3, "q_proj"))
        return {
            "a fine-tune": full,
            "a fine-tune, by a sample": compared(FIRST, CHILD, budget=100_000),
            "a fine-tune and more": compared(FIRST, CHILD | {"model.extra.weight": torch.ones(64, 64, dtype=BF16)}),
            "steps of a run and another model": compared(FIRST, CHILD, tuned(CHILD, 0.01, 3), SECOND),
            "a merge in the middle": compared(FIRST, made.merged((0.7, 0.3), FIRST, SECOND), SECOND),
            "a copy in fp32": compared(FIRST, made.each(lambda x: x, FIRST, dtype=made.F32)),
            "layers repeated": compared(FIRST, made.stacked((FIRST, 0, 3), (FIRST, 1, 4))),
            "unrelated models": compared(FIRST, SECOND, THIRD),
            "an adapter": asked(f"./{path}", f"./{adapter}"),
            "far relatives": compared(FIRST, tuned(FIRST, 0.3, 4), tuned(FIRST, 0.02, 5)),
            **copies(),
            "hostile names": hostile(full),
            "error": refusal(lambda: compared(FIRST, {f"other.{name}": tensor[:7] for name, tensor in FIRST.items()})),
        }


def copies() -> dict[str, Report | MantissaError]:
    """Compare quantized copies: one that is nearest, and for its size too, or another."""
    write(Path("source"), FIRST)
    eight, four = (f"./{quantized_files.ggml(Path(kind), FIRST, kind)}" for kind in ("Q8_0", "Q4_0"))
    fp8 = f"./{quantized_files.fp8(Path('fp8'), FIRST)}"
    trained = f"./{quantized_files.fp8(Path('trained'), tuned(FIRST, 0.1, 6))}"
    return {
        "three copies": asked("./source", four, eight, fp8),
        "two copies": asked("./source", four, eight),
        "three copies, and one of a fine-tune": asked("./source", four, eight, fp8, trained),
        "two copies, and one of a fine-tune": asked("./source", four, eight, trained),
        "a copy, and one of a fine-tune": asked("./source", four, trained),
    }


def compared(*models: Tensors, **options: Any) -> CompareReport:
    """Write the checkpoints and compare them."""
    for number, tensors in enumerate(models, 1):
        write(Path(f"model-{number}"), tensors)
    return asked(*(f"./model-{number}" for number in range(1, len(models) + 1)), **options)


def asked(*models: str, **options: Any) -> CompareReport:
    """Compare checkpoints of this folder."""
    *_, report = analyze(CompareRequest(models=models, **options), Access(local=True))
    assert isinstance(report, CompareReport)
    return CompareReport.model_validate_json(report.model_dump_json().replace(str(Path.cwd()), "."))  # as in every other folder


def hostile(report: CompareReport) -> CompareReport:
    """Return the report with markup and control characters wherever text comes from outside."""
    best = report.parents.candidates[0].model_copy(update={"ref": HOSTILE})
    parents = report.parents.model_copy(update={"candidates": (best,), "parents": (HOSTILE,)})
    facts = report.models[0].model_copy(update={"ref": HOSTILE})
    answer = report.answer.model_copy(update={"text": f"{HOSTILE} is derived from {HOSTILE}."})
    changes = {"models": (facts, *report.models[1:]), "parents": parents, "sparsity": None, "answer": answer}
    return report.model_copy(update=changes | {"notes": (WORDS.note("related-too", names=(HOSTILE,)),)})
