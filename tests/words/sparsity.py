"""Reports of update sparsity for reading: samples, models in memory whose differences are known, and adapters."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import mantissa
from analyzers.comparison.sparsity import SparsityReport
from analyzers.core.errors import MantissaError
from analyzers.core.report import Report
from tests.sparsity.adapters import base as write_base
from tests.sparsity.adapters import factors, write_adapter
from tests.sparsity.checkpoints import BF16, F32, Tensors, cast, model, updated
from tests.words.hostile import HOSTILE, refusal

BASE, TUNED = "sample:tiny-bf16", "sample:tiny-tuned"
EMBEDDING, HEAD, FIRST = "model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.up_proj.weight"


def reports() -> dict[str, Report | MantissaError]:
    """Make the reports; the names say what is special about each."""
    tuned = _exact(BASE, TUNED)
    made: dict[str, Report | MantissaError] = {
        "a fine-tune": tuned,
        "a sample": mantissa.sparsity(BASE, TUNED, budget=200_000),
        "a trajectory, a coarse probe, in part": _exact(BASE, "sample:tiny-step-1", TUNED, eta=0.01, include="layers"),
        "a copy in other files": _exact(BASE, "sample:tiny-sharded"),
        "the same files": _exact(BASE, BASE),
        "a sample of a copy": mantissa.sparsity(BASE, "sample:tiny-sharded", budget=200_000),
        **_in_memory(),
        **_adapters(),
        "hostile names": _hostile(tuned),
        "error": refusal(lambda: _exact(model(), {"transformer.wte.weight": torch.ones(8, 4)})),
    }
    return made


def _exact(*sides: Any, **options: Any) -> SparsityReport:
    report: SparsityReport = mantissa.sparsity(*sides, mode="exact", **options)
    return report


def _in_memory() -> dict[str, SparsityReport]:
    plain, fine = model(), model(F32)
    rounded = cast(cast(fine, BF16), F32)
    below = {name: tensor * (1 + 2.0**-20) for name, tensor in rounded.items()}
    missing = {name: tensor for name, tensor in plain.items() if name != FIRST}
    patch = pytest.MonkeyPatch()
    with patch.context() as limits:
        limits.setattr("analyzers.core.limits.SPECTRAL_MATRICES", 2)
        decomposed = _exact(plain, updated(plain), spectral=True)
    return {
        "updates that bf16 swallows": _exact(rounded, below),
        "updates of fp32 weights": _exact(fine, updated(fine)),
        "a copy rounded to bf16": _exact(fine, cast(fine, BF16)),
        "a sample of an update that is nearly everywhere": mantissa.sparsity(plain, updated(plain, 0.01, 0.84), budget=20_000),
        "every weight moves": _exact(plain, {name: tensor + 1 for name, tensor in plain.items()}),
        "a copy of a part": _exact(plain, missing),
        "layers in another order": _exact(*_reordered()),
        "a sample without a value of the last": mantissa.sparsity(plain, updated(plain), {HEAD: plain[HEAD]}, budget=2, seed=1),
        "a few matrices decomposed": decomposed,
    }


def _reordered() -> tuple[Tensors, Tensors]:
    before = model(layers=6)
    moved = {f"layers.{to}.": f"layers.{of}." for to, of in enumerate((0, 2, 3, 4, 5, 1))}

    def source(name: str) -> str:
        return next((name.replace(to, of) for to, of in moved.items() if to in name), name)

    return before, {name: before[source(name)] for name in before}


def _adapters() -> dict[str, SparsityReport]:
    """Compare a base with adapters of it."""
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        base, tensors = write_base(at, layers=3)
        drawn = {name: factors(tensors, size, "q_proj") for name, size in (("small", 2e-4), ("tiny", 1e-8), ("large", 10.0))}
        first = next(iter(drawn["small"]))
        zero = {name: (a, torch.zeros_like(b)) for name, (a, b) in drawn["small"].items()}
        inf = {name: (a * torch.inf, b) for name, (a, b) in drawn["small"].items()}
        lost = {"model.layers.7.self_attn.q_proj.weight": (drawn["small"][first][0] + 0, drawn["small"][first][1] + 0)}
        tied, of_tied = write_base(at / "tied", tie_word_embeddings=True)
        head = factors({HEAD: of_tied[EMBEDDING]}, 1e-3, "lm_head")

        def measured(name: str, update: Mapping[str, Any], base: Path = base, **options: Any) -> SparsityReport:
            adapter = write_adapter(at / name, dict(update))
            return _moved(mantissa.sparsity(str(base), str(adapter), **(options or {"mode": "exact"})), folder)

        one = write_adapter(at / "one", factors(tensors, 1e-2, "q_proj"))
        return {
            "an adapter that bf16 damages, one module empty, one unmatched": measured(
                "small", drawn["small"] | {first: zero[first]} | lost
            ),
            "a sample of an adapter": measured("sampled", factors(tensors, 2e-4, "proj"), budget=20_000),
            "an adapter below bf16": measured("tiny", drawn["tiny"]),
            "an adapter that bf16 keeps": measured("large", drawn["large"]),
            "an adapter of zeros": measured("zero", zero),
            "an adapter with infinities": measured("infinite", inf),
            "an adapter of a tied head": measured("head", factors(of_tied, 1e-3, "q_proj") | head, tied),
            "an adapter of a tied head alone": measured("alone", head, tied),
            "adapters that cancel": _moved(_exact(str(base), f"{base}+{one}+-1*{one}"), folder),
        }


def _moved(report: SparsityReport, folder: str) -> SparsityReport:
    """Return the same report on another folder than a temporary one."""
    return SparsityReport.model_validate_json(report.model_dump_json().replace(folder, "/models"))


def _hostile(report: SparsityReport) -> SparsityReport:
    """Return the report with markup and control characters wherever text comes from outside."""
    tensors = {HOSTILE: torch.ones(2, 2), "a": torch.ones(4), f"{HOSTILE}.gone": torch.ones(2)}
    found = _exact(tensors, {HOSTILE: torch.zeros(2, 2), "a": torch.ones(4), f"{HOSTILE}.new": torch.ones(3)})
    named = {"ref": HOSTILE, "commit": HOSTILE}
    return found.model_copy(update={"base": report.base.model_copy(update=named), "tuned": (report.tuned[0].model_copy(update=named),)})
