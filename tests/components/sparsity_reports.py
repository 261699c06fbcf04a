"""Explicit sparsity reports, for tests of how they are drawn."""

import math
from itertools import pairwise
from typing import Any

from analyzers.core.report import Environment, Timing
from analyzers.update_sparsity.report import SparsityReport
from analyzers.update_sparsity.words import WORDS
from tests.components.dtype_reports import HOSTILE

_ROLES = ("attention", "mlp", "norm")
COMMIT = "1f2e3d4c5b6a79881f2e3d4c5b6a79881f2e3d4c"


def facts(ref: str, commit: str = COMMIT) -> dict[str, Any]:
    return {
        "ref": ref,
        "commit": commit,
        "parameters": 1_700_000,
        "bytes": 3_400_000,
        "files": 1,
        "tensors": 39,
        "public": True,
        "quantization": None,
    }


def tensor(name: str, layer: int | None, role: str, **changes: Any) -> dict[str, Any]:
    row = {
        "name": name,
        "tuned_name": name,
        "dtype": "BF16",
        "tuned_dtype": "BF16",
        "shape": (64, 32),
        "parameters": 2048,
        "values_read": 2048,
        "role": role,
        "layer": layer,
        "num_changed": 512,
        "sparsity": 0.75,
        "probe_num_changed": 512,
        "probe_sparsity": 0.75,
        "swallowed": 0,
        "changed_rows": 0.9375,
        "changed_columns": 1.0,
        "max_update": 0.0125,
        "update_norm": 0.25,
        "relative_norm": 0.0123,
    }
    return row | changes


def _summary(scale: float, count: int) -> dict[str, Any]:
    names = ("mean", "std", "median", "p25", "p50", "p75", "p90", "p99", "max")
    return {"count": count, "min": scale / 2} | {name: scale * (i + 1) for i, name in enumerate(names)}


def _magnitudes(swallowed: bool = False) -> dict[str, Any]:
    """Make magnitudes whose bins are those of 1.7 million values; ``swallowed``: some below the resolution of bf16."""
    edges = [2.0**e * (1 + q / 4) for e in range(-12 if swallowed else -8, 1) for q in range(4)]
    bins = []
    for low, high in pairwise(edges):
        count = round(9e4 * math.exp(-((math.log2(low) + 6) ** 2) / 6)) + 2
        changed = 0 if low < 2**-9 else 1 if low < 2**-8 else count
        shares = {"share": count / 1_700_000, "changed_share": changed / 1_700_000}
        bins.append({"low": low, "high": high, "count": count, "changed": changed, **shares})
    absolute = _summary(1e-5, 1_700_000) | {"changed_only": _summary(1e-4, 425_000)}
    below = {"below_2_minus_8": 0.0, "below_2_minus_7": 0.25}
    relative = _summary(1e-3, 1_700_000) | below | {"changed_only": _summary(1e-2, 425_000) | below, "histogram": bins}
    return {"absolute": absolute, "relative": relative, "nonfinite": 0}


def unmatched(**found: Any) -> dict[str, Any]:
    """Make the field of unmatched tensors, with the counts of those given."""
    kinds = ("missing", "extra", "misshapen", "renamed", "resized", "relaid", "integers", "tied")
    lists: dict[str, Any] = {kind: found.get(kind, ()) for kind in kinds}
    rest = {"moved_layers": (), "counts": {kind: len(lists[kind]) for kind in kinds}, "missing_parameters": 0, "extra_parameters": 0}
    return lists | rest


def trajectory(count: int) -> dict[str, Any]:
    """Return the fields of a report on ``count`` tuned checkpoints."""
    names = [f"org/tuned@step-{i}" for i in range(1, count + 1)]
    rows = [
        {
            "ref": "org/tuned",
            "commit": f"{i:040x}",
            "sparsity": 1 - 0.05 * math.sqrt(i),
            "num_changed": 1000 * i,
            "num_unchanged": 1_700_000 - 1000 * i,
            "total_parameters": 1_700_000,
            "update_fraction": 0.05 * math.sqrt(i),
            "interval": None,
            "probe": {"sparsity": 1 - 0.05 * math.sqrt(i), "num_changed": 1000 * i},
            "swallowed": {"count": 0, "share": 0.0, "meaningful": True},
            "relative_norm": 1e-3 * i,
            "roles": {"attention": 1 - 0.06 * math.sqrt(i), "norm": None if i == 1 else 1.0},
            "step": {"sparsity": 0.95, "num_changed": 1000, "probe": {"sparsity": 0.95, "num_changed": 1000}},
        }
        for i in range(1, count + 1)
    ]
    overlap = [
        {"first": i, "second": j, "shared": 10, "either": 40 * (j - i), "jaccard": 0.25 / (j - i), "independent": 0.05}
        for i in range(count)
        for j in range(i + 1, count)
    ]
    return {
        "request": {"base": "org/base", "tuned": names},
        "base": facts("org/base"),
        "tuned": [facts("org/tuned", f"{i:040x}") for i in range(1, count + 1)],
        "trajectory": rows,
        "overlap": overlap,
    }


def spectrum(name: str = "model.layers.0.mlp.up_proj.weight") -> dict[str, Any]:
    measures = ("stable_rank", "effective_rank", "nss", "largest_angle_left", "largest_angle_right", "mean_angle_left", "mean_angle_right")
    row: dict[str, Any] = {measure: 1.5 + i for i, measure in enumerate(measures)}
    shares = {"mask_share": 0.3, "principal_overlap": 0.125, "low_magnitude_overlap": None}
    return row | shares | {"name": name, "shape": (64, 32), "k": 3}


def sparsity_report(depth: int = 4, **changes: Any) -> SparsityReport:
    """Make the report of an exact comparison of two small bf16 checkpoints with a quarter of the weights changed; ``changes``: fields."""
    roles = {
        "embedding": (0, 1, 0.95, 0.95, 0.95),
        "attention": (depth, 4 * depth, 0.7, 0.5, 0.8),
        "mlp": (depth, 3 * depth, 0.72, 0.69, 0.75),
        "norm": (depth, 2 * depth + 1, 1.0, 1.0, 1.0),
    }
    inside = [
        {
            "layer": i,
            "tensors": 9,
            "parameters": 9000,
            "num_changed": 2500,
            "sparsity": 0.72,
            "probe_sparsity": 0.72,
            "relative_norm": 0.01,
            "roles": {role: round(share - 0.1 * i / depth, 4) for role, share in zip(_ROLES, (0.75, 0.78, 1.0), strict=True)},
        }
        for i in range(depth)
    ]
    outside = inside[0] | {"layer": None, "roles": {"embedding": 0.95, "norm": 1.0}}
    fields: dict[str, Any] = {
        "analysis_version": 1,
        "id": "0" * 64,
        "timing": Timing(seconds=0.31, reading_seconds=0.3, bytes_per_second=2.1e7),
        "environment": Environment(python="3.11.2", machine="Linux x86_64", device="cpu", libraries={"numpy": "2.4.6"}),
        "request": {"base": "org/base", "tuned": ["org/tuned"], "mode": "exact"},
        "base": facts("org/base"),
        "tuned": [facts("org/tuned")],
        "mode": "exact",
        "bytes_read": 6_800_000,
        "requests": 12,
        "values_compared": 1_700_000,
        "sparsity": 0.75,
        "num_changed": 425_000,
        "num_unchanged": 1_275_000,
        "total_parameters": 1_700_000,
        "update_fraction": 0.25,
        "eta": 1e-3,
        "probe": {"sparsity": 0.75, "num_changed": 425_000},
        "swallowed": {"count": 0, "share": 0.0, "meaningful": True},
        "interval": None,
        "intervals": {},
        "roles": {
            name: {
                "layers": in_layers,
                "tensors": tensors,
                "parameters": 90_000,
                "num_changed": round(90_000 * (1 - share)),
                "sparsity": share,
                "probe_sparsity": share,
                "mean": share,
                "std": 0.02,
                "min": least,
                "max": most,
                "probe_mean": round(share - 0.02, 4),
                "probe_std": 0.01,
                "probe_min": round(least - 0.05, 4),
                "probe_max": round(most + 0.05, 4),
                "relative_norm": 0.01,
            }
            for name, (in_layers, tensors, share, least, most) in roles.items()
        },
        "layers": [*inside, outside],
        "tensors": [tensor(f"model.layers.{i}.mlp.up_proj.weight", i, "mlp") for i in range(depth)],
        "magnitudes": _magnitudes(),
        "ulp_histogram": [
            {"low": low, "high": high, "count": count, "share": count / 1_700_000}
            for low, high, count in ((0, 0, 1_275_000), (1, 1, 300_000), (2, 2, 100_000), (3, 3, 0), (4, 7, 20_000), (8, 15, 5_000))
        ],
        "energy": [{"top": top, "energy": energy} for top, energy in ((0.001, 0.1), (0.01, 0.4), (0.05, 0.8))],
        "unmatched": unmatched(),
        "trajectory": (),
        "overlap": (),
        "spectral": (),
        "answer": WORDS.note("changed", changed=0.25, parameters=1_700_000, sparsity=0.75),
        "advice": WORDS.advice("ship-update", "dtype", "org/tuned", cost=0.3125),
    }
    return SparsityReport.model_validate(fields | changes)


def sampled_report(**changes: Any) -> SparsityReport:
    """Make a report of quick mode on fp32 checkpoints, with updates that bf16 swallows."""
    fields: dict[str, Any] = {
        "request": {"base": "org/base", "tuned": ["org/tuned"]},
        "mode": "quick",
        "interval": {"estimate": 0.75, "low": 0.7, "high": 0.79},
        "intervals": {"probe": {"estimate": 0.7, "low": 0.65, "high": 0.74}},
        "values_compared": 400_000,
        "num_changed": 100_000,
        "num_unchanged": 300_000,
        "probe": {"sparsity": 0.7, "num_changed": 120_000},
        "swallowed": {"count": 20_000, "share": 0.05, "meaningful": True},
        "magnitudes": _magnitudes(swallowed=True),
    }
    return sparsity_report(**fields | changes)


def hostile_sparsity_report() -> SparsityReport:
    """Make a report in which every text that can come from outside contains HTML."""
    named = {"name": HOSTILE, "shape": (1,), "dtype": HOSTILE}
    pair = {"name": HOSTILE, "tuned_name": HOSTILE}
    shapes = {"shape": (1, 2), "tuned_shape": (2, 1)}
    plain = sparsity_report()
    several = trajectory(2)
    rows = [row | {"ref": HOSTILE, "commit": HOSTILE, "roles": {HOSTILE: 0.5}} for row in several["trajectory"]]
    found = unmatched(
        missing=[named],
        extra=[named],
        misshapen=[pair | shapes | {"transposed": True}],
        renamed=[pair],
        resized=[pair | shapes | {"rows": 1}],
        relaid=[pair | {"form": HOSTILE, "agree": True}],
        integers=[named],
        tied=[HOSTILE],
    )
    return sparsity_report(
        request={"base": HOSTILE, "tuned": [HOSTILE, HOSTILE], "subfolder": HOSTILE, "include": HOSTILE},
        base=facts(HOSTILE, HOSTILE),
        tuned=[facts(HOSTILE, HOSTILE)] * 2,
        roles={HOSTILE: plain.roles["mlp"].model_dump()},
        layers=[plain.layers[0].model_dump() | {"roles": {HOSTILE: 0.5}}],
        tensors=[tensor(f"={HOSTILE}", 0, HOSTILE, tuned_name=HOSTILE, dtype=HOSTILE)],
        unmatched=found,
        trajectory=rows,
        overlap=several["overlap"],
        spectral=[spectrum(HOSTILE)],
        notes=(WORDS.note("dtypes", pairs=(HOSTILE,)),),
    )
