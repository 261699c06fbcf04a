"""Lists what is wrong with the product's answers about a generated case."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.pairs import engine, oracle
from tests.pairs.expected import expected
from tests.pairs.generate import Case, make, write_checkpoint

TOLERANCE = 1e-9


class Answer(NamedTuple):
    """What was said of a case: the verdict, the relations of the tensors that differ from P_1, and what is wrong."""

    verdict: str
    relations: Counter[str]
    problems: list[str]


def answer(kind: str, storage: str, seed: int, folder: Path) -> Answer:
    """Write the case of this kind, ask parents and sparsity in exact mode, and compare with the oracle."""
    case = make(kind, storage, seed)
    sharded = seed % 2 == 1
    model = write_checkpoint(folder / "x", case.model, sharded)
    candidates = [write_checkpoint(folder / f"p{i}", state, sharded) for i, state in enumerate(case.candidates)]
    report = engine.parents(model, *candidates, mode="exact")
    problems = [*_verdict(kind, case, report), *_relations(kind, case, report), *_figures(kind, case, report)]
    if expected(kind).by_name:
        problems += _sparsity(case, engine.sparsity(candidates[0], model, mode="exact"))
    changed = oracle.differing(case.model, case.candidates[0])
    relations = Counter(row["relation"] for row in report["conversion"] if row["name"] in changed)
    return Answer(report["verdict"], relations, problems)


def _verdict(kind: str, case: Case, report: engine.Json) -> Iterator[str]:
    right = expected(kind)
    if report["verdict"] not in right.verdicts:
        yield f"verdict {report['verdict']}, not {' or '.join(sorted(right.verdicts))}"
    if kind in ("slerp-0.4", "slerp-0.6", "mean-of-fp32-masters") and "DARE" in report["answer"]["text"]:
        yield "called DARE"


def _relations(kind: str, case: Case, report: engine.Json) -> Iterator[str]:
    right = expected(kind)
    if right.relation is None:
        return
    changed = oracle.differing(case.model, case.candidates[0])
    rows = {row["name"]: row for row in report["conversion"]}
    wrong: Counter[str] = Counter()
    for name in case.model:
        if name not in rows:
            wrong["no relation of a tensor"] += 1
            continue
        row = rows[name]
        allowed = right.relation if name in changed else {"equal"}
        if row["relation"] not in allowed:
            wrong[f"relation {row['relation']}, not {' or '.join(sorted(allowed))}"] += 1
        elif row["relation"] == "equal" and row["exceptions"]:
            wrong["equal with exceptions"] += 1
        elif row["relation"] == "rounded" and right.to not in (None, row["to"]):
            wrong[f"rounded to {row['to']}, not {right.to}"] += 1
        elif row["relation"] == "affine":
            for key in ("factor", "offset"):
                value = getattr(right, key)
                if value is not None and not math.isclose(row.get(key) or 0, value, abs_tol=0.02):
                    wrong[f"{key} {row.get(key)}, not {value}"] += 1
    yield from (f"{problem} ({times})" for problem, times in wrong.items())


def _figures(kind: str, case: Case, report: engine.Json) -> Iterator[str]:
    rows = {Path(row["ref"]).name: row for row in report["candidates"]}
    for i, state in enumerate(case.candidates if expected(kind).by_name and case.layers is None else ()):
        right = oracle.likeness(case.model, state)
        for key, value in right._asdict().items():
            if not _close(rows[f"p{i}"][key], value):
                yield f"{key} of p{i} is {rows[f'p{i}'][key]}, not {value}"
    if report["verdict"] == "merge":
        yield from _fit(case, report["fit"])
    if report["verdict"] == "stack" and case.layers is not None:
        found = {row["layer"]: (Path(row["ref"]).name, row["source"]) for row in report["layer_map"]}
        for layer, (model, source) in enumerate(case.layers):
            if found.get(layer, ("p0", layer)) != (f"p{model}", source):
                yield f"layer {layer} is {found[layer]}, not layer {source} of p{model}"


def _fit(case: Case, fit: engine.Json) -> Iterator[str]:
    found = {Path(row["ref"]).name: row for row in fit["parents"]}
    order = [int(name[1:]) for name in found]
    for i, best in zip(order, oracle.least_squares(case.model, [case.candidates[i] for i in order]), strict=True):
        row = found[f"p{i}"]
        if not _near(row["weight"], best):
            yield f"weight of p{i} is {row['weight']}, not {best}"
        if case.weights and not row["low"] - 1e-9 <= case.weights[i] <= row["high"] + 1e-9:
            yield f"interval of p{i} is {row['low']} to {row['high']}, without {case.weights[i]}"
    for row in fit["layers"]:
        layer = {name: x for name, x in case.model.items() if name.startswith(f"model.layers.{row['layer']}.")}
        right = oracle.least_squares(layer, [case.candidates[i] for i in order]) if layer else row["weights"]
        for i, weight, best in zip(order, row["weights"], right, strict=True):
            if not _near(weight, best, 1e-4):  # outliers may be left out
                yield f"weight of p{i} in layer {row['layer']} is {weight}, not {best}"
    if case.weights:
        exact = oracle.exact_share(case.model, case.candidates, case.weights)
        if fit["exact_share"] is None or abs(fit["exact_share"] - exact) > 0.002:
            yield f"exact share {fit['exact_share']}, not {exact}"


def _near(weight: float, best: float, tolerance: float = 1e-7) -> bool:
    """Return whether a weight is that of least squares, or the nearest multiple of 0.01."""
    return min(abs(weight - best), abs(weight - round(best, 2))) < tolerance


def _sparsity(case: Case, report: engine.Json) -> Iterator[str]:
    base = case.candidates[0]
    counts = {name: oracle.counts(base[name], x) for name, x in case.model.items()}
    total = {key: sum(getattr(each, key) for each in counts.values()) for key in ("values", "changed", "probe", "swallowed")}
    absolute = sum(float(each.update.sum()) for each in counts.values()) / max(1, sum(each.update.size for each in counts.values()))
    whole = (
        ("values_compared", report["values_compared"], total["values"]),
        ("num_changed", report["num_changed"], total["changed"]),
        ("num_unchanged", report["num_unchanged"], total["values"] - total["changed"]),
        ("sparsity", report["sparsity"], 1 - total["changed"] / total["values"]),
        ("probe", report["probe"]["num_changed"], total["probe"]),
        ("swallowed", report["swallowed"]["count"], total["swallowed"]),
        ("mean update", report["magnitudes"]["absolute"]["mean"], absolute),
        ("largest update", report["magnitudes"]["absolute"]["max"], max(float(each.update.max(initial=0)) for each in counts.values())),
        ("changed by role", sum(row["num_changed"] for row in report["roles"].values()), total["changed"]),
        ("changed by layer", sum(row["num_changed"] for row in report["layers"]), total["changed"]),
    )
    yield from (f"{what} is {value}, not {right}" for what, value, right in whole if not _close(value, right))
    rows = {row["name"]: row for row in report["tensors"]}
    if rows.keys() != counts.keys():
        yield f"{len(rows)} tensors compared, not {len(counts)}"
    for name, right in counts.items():
        row = rows.get(name)
        if row is None:
            continue
        parts = (
            ("num_changed", right.changed),
            ("probe_num_changed", right.probe),
            ("swallowed", right.swallowed),
            ("update_norm", right.norm),
        )
        yield from (f"{key} of {name} is {row[key]}, not {value}" for key, value in parts if not _close(row[key], value))


def _close(value: float | None, right: float) -> bool:
    """Return whether counts are equal, and other numbers within the tolerance."""
    if isinstance(right, int):
        return value == right
    return value is not None and math.isclose(value, right, rel_tol=TOLERANCE, abs_tol=TOLERANCE * 1e-3)
