"""Lists what is wrong with the product's answers about a generated case."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mantissa
from tests.pairs import oracle
from tests.pairs.generate import KINDS, Case, Kind, make, write_checkpoint
from tests.sparsity.oracle import Expected, expected

TOLERANCE = 1e-9
Json = dict[str, Any]


def plain(report: Any) -> Json:
    """Return the JSON of a report."""
    report_json: Json = json.loads(report.model_dump_json())
    return report_json


def written(case: Case, folder: Path, sharded: bool = False) -> list[Path]:
    """Write the model and its candidates."""
    return [write_checkpoint(folder / name, state, sharded) for name, state in zip("xabcd", (case.model, *case.candidates), strict=False)]


def problems(name: str, storage: str, seed: int, folder: Path) -> list[str]:
    """Write the case of a kind, ask parents and sparsity in exact mode, and say what is wrong, by the oracle."""
    kind, case = KINDS[name], make(name, storage, seed)
    paths = written(case, folder, seed % 2 == 1)
    report = plain(mantissa.parents(*paths, mode="exact"))
    wrong = [] if report["verdict"] in kind.verdicts else [f"verdict {report['verdict']}, not {' or '.join(sorted(kind.verdicts))}"]
    wrong += [*_relations(kind, case, report), *_figures(kind, case, report)]
    return [*wrong, *(_sparsity(case, plain(mantissa.sparsity(paths[1], paths[0], mode="exact"))) if kind.by_name else ())]


def _relations(kind: Kind, case: Case, report: Json) -> Iterator[str]:
    if kind.relation is None:
        return
    changed, rows = oracle.differing(case.model, case.candidates[0]), {row["name"]: row for row in report["conversion"]}
    wrong: Counter[str] = Counter()
    for name in case.model:
        row, allowed = rows.get(name, {"relation": "none"}), kind.relation if name in changed else {"equal"}
        if row["relation"] not in allowed:
            wrong[f"relation {row['relation']}, not {' or '.join(sorted(allowed))}"] += 1
        elif row["relation"] == "equal" and row["exceptions"]:
            wrong["equal with exceptions"] += 1
        elif row["relation"] == "rounded" and kind.to not in (None, row["to"]):
            wrong[f"rounded to {row['to']}, not {kind.to}"] += 1
        elif row["relation"] == "affine":
            for key in ("factor", "offset"):
                value = getattr(kind, key)
                if value is not None and not math.isclose(row.get(key) or 0, value, abs_tol=0.02):
                    wrong[f"{key} {row.get(key)}, not {value}"] += 1
    yield from (f"{problem} ({times})" for problem, times in wrong.items())


def _figures(kind: Kind, case: Case, report: Json) -> Iterator[str]:
    rows = {Path(row["ref"]).name: row for row in report["candidates"]}
    for name, state in zip("abcd", case.candidates if kind.by_name and case.layers is None else (), strict=False):
        right = oracle.likeness(case.model, state)._asdict()
        yield from (
            f"{key} of {name} is {rows[name][key]}, not {value}" for key, value in right.items() if not _close(rows[name][key], value)
        )
    if report["verdict"] == "merge":
        yield from _fit(case, report["fit"])
    if report["verdict"] == "stack" and case.layers is not None:
        found = {row["layer"]: (Path(row["ref"]).name, row["source"]) for row in report["layer_map"]}
        for layer, (model, source) in enumerate(case.layers):
            if found.get(layer, ("a", layer)) != ("abcd"[model], source):
                yield f"layer {layer} is {found[layer]}, not layer {source} of {'abcd'[model]}"


def _fit(case: Case, fit: Json) -> Iterator[str]:
    found = {Path(row["ref"]).name: row for row in fit["parents"]}
    candidates = dict(zip("abcd", case.candidates, strict=False))
    states = [candidates[name] for name in found]
    for (name, row), best in zip(found.items(), oracle.least_squares(case.model, states), strict=True):
        if not _near(row["weight"], best):
            yield f"weight of {name} is {row['weight']}, not {best}"
        if case.weights and not row["low"] - 1e-9 <= case.weights["abcd".index(name)] <= row["high"] + 1e-9:
            yield f"interval of {name} is {row['low']} to {row['high']}, without {case.weights}"
    for row in fit["layers"]:
        layer = {name: x for name, x in case.model.items() if name.startswith(f"model.layers.{row['layer']}.")}
        right = oracle.least_squares(layer, states) if layer else row["weights"]
        if not all(_near(weight, best, 1e-4) for weight, best in zip(row["weights"], right, strict=True)):  # outliers may be left out
            yield f"weights in layer {row['layer']} are {row['weights']}, not {right}"
    if case.weights:
        exact = oracle.exact_share(case.model, case.candidates, case.weights)
        if fit["exact_share"] is None or abs(fit["exact_share"] - exact) > 0.002:
            yield f"exact share {fit['exact_share']}, not {exact}"


def _near(weight: float, best: float, tolerance: float = 1e-7) -> bool:
    """Return whether a weight is that of least squares, or the nearest multiple of 0.01."""
    return min(abs(weight - best), abs(weight - round(best, 2))) < tolerance


def _sparsity(case: Case, report: Json) -> Iterator[str]:
    total, counts = Expected(), {name: expected(case.candidates[0][name], x, 1e-3) for name, x in case.model.items()}
    for each in counts.values():
        total.add(each)
    whole = (
        ("values_compared", report["values_compared"], total.values),
        ("num_changed", report["num_changed"], total.changed),
        ("num_unchanged", report["num_unchanged"], total.values - total.changed),
        ("sparsity", report["sparsity"], 1 - total.changed / total.values),
        ("probe", report["probe"]["num_changed"], total.probe),
        ("swallowed", report["swallowed"]["count"], total.differ - total.changed),
        ("mean update", report["magnitudes"]["absolute"]["mean"], float(total.absolute.mean())),
        ("largest update", report["magnitudes"]["absolute"]["max"], float(total.absolute.max())),
        ("changed by role", sum(row["num_changed"] for row in report["roles"].values()), total.changed),
        ("changed by layer", sum(row["num_changed"] for row in report["layers"]), total.changed),
    )
    yield from (f"{what} is {value}, not {right}" for what, value, right in whole if not _close(value, right))
    rows = {row["name"]: row for row in report["tensors"]}
    if rows.keys() != counts.keys():
        yield f"{len(rows)} tensors compared, not {len(counts)}"
    for name in rows.keys() & counts.keys():
        row, right = rows[name], counts[name]
        parts = {"num_changed": right.changed, "probe_num_changed": right.probe, "swallowed": right.differ - right.changed}
        figures = parts | {"update_norm": math.sqrt(right.update_square)}
        yield from (f"{key} of {name} is {row[key]}, not {value}" for key, value in figures.items() if not _close(row[key], value))


def _close(value: float | None, right: float) -> bool:
    """Return whether counts are equal, and other numbers within the tolerance."""
    if isinstance(right, int):
        return value == right
    return value is not None and math.isclose(value, right, rel_tol=TOLERANCE, abs_tol=TOLERANCE * 1e-3)
