"""Measures how often verdicts of parents are right on generated pairs and merges: ``python -m tests.parents.rates [ROUNDS]``.

Each run reads a sample of at most 250,000 values of each checkpoint, where quick mode reads 32 million of a large one in bf16: these are
rates at a hundredth of quick mode's sample.
"""

import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from tests.parents.checkpoints import Folder, Tensors, asked, dare, each, fp8, int8, merged, model, mxfp4, slerp, ties, tuned, with_lora

BUDGET = 570_000  # bytes, of which seven eighths are for values of two bytes
MODELS = 46  # 1,035 pairs
WIDTH = 128


def unrelated(folder: Folder) -> Counter[str]:
    """Count verdicts over all pairs of independent models, half of which share the scales of their rows and a common mean."""
    names = []
    for seed in range(MODELS):
        tensors = model(1000 + seed, width=WIDTH)
        if seed % 2:
            rows = torch.linspace(0.2, 3, 512).unsqueeze(1)
            tensors = each(lambda x: x * rows + 0.1 * x.std() if x.shape[0] == 512 else x, tensors)  # noqa: B023
        names.append(folder.write(f"u{seed}", tensors))
    return Counter(asked(x, p, budget=BUDGET).verdict for x, p in combinations(names, 2))


def related(rng: np.random.Generator, first: Tensors, second: Tensors, seed: int) -> Iterator[tuple[str, str, Tensors]]:
    """Yield kind, expected verdict, and a child of ``first``."""
    yield "copy", "same-weights", first
    for name, quantize in (("int8", int8), ("fp8", fp8), ("mxfp4", mxfp4)):
        yield name, "quantized-copy", quantize(first)
    for norm in (0.001, 0.01, 0.1, 0.5):
        yield f"trained by {norm:g}", "derived", tuned(first, norm, seed)
    yield "merged LoRA", "derived", with_lora(first, int(rng.integers(1, 17)), float(rng.uniform(0.01, 0.1)), seed)
    yield "pruned", "derived", each(lambda x: x * (x.abs() > 0.3 * x.std()), first)


def merges(
    rng: np.random.Generator, first: Tensors, second: Tensors, seed: int
) -> Iterator[tuple[str, list[Tensors], Tensors, list[float] | None]]:
    """Yield kind, parents, child, and the weights if they are exact."""
    weight = float(rng.integers(1, 20)) / 20
    yield "linear, of two", [first, second], merged((weight, 1 - weight), first, second), [weight, 1 - weight]
    third = model(seed + 7, width=WIDTH)
    three = rng.multinomial(17, [1 / 3] * 3) / 20 + 0.05
    yield "linear, of three", [first, second, third], merged(tuple(three), first, second, third), three.tolist()
    tunes = [tuned(first, float(rng.uniform(0.01, 0.1)), seed + i) for i in (1, 2)]
    yield "of two fine-tunes", tunes, merged((weight, 1 - weight), *tunes), [weight, 1 - weight]
    yield "task arithmetic", [first, *tunes], each(lambda b, x, y: b + 0.6 * (x - b) + 0.7 * (y - b), first, *tunes), [-0.3, 0.6, 0.7]
    yield "SLERP", [first, second], slerp(weight, first, second), None
    yield "DARE", [first, *tunes], dare(first, tunes, 0.5, float(rng.uniform(0.3, 0.8)), seed), None
    yield "TIES", [first, *tunes], ties(first, tunes, float(rng.uniform(0.2, 0.6))), None


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(Path(place))
        found = unrelated(folder)
        print(f"unrelated pairs: {found.total():,}, of which {dict(found)}", flush=True)
        right: defaultdict[str, Counter[str]] = defaultdict(Counter)
        worst, proofs = 0.0, [1.0]
        for number in range(rounds):
            rng = np.random.default_rng(number)
            first, second = model(2 * number, width=WIDTH), model(2 * number + 1, width=WIDTH)
            for kind, verdict, child in related(rng, first, second, number):
                report = folder.parents(child, second, first, budget=BUDGET)
                right[kind][report.verdict if report.candidates[0].ref.endswith("c1") else "wrong parent"] += 1
                right[kind]["right"] += report.verdict == verdict
            for kind, parents, child, weights in merges(rng, first, second, 10_000 + 10 * number):
                report = folder.parents(child, *parents, budget=BUDGET)
                right[kind][report.verdict] += 1
                right[kind]["right"] += report.verdict == "merge"
                if weights is not None and report.fit is not None and report.verdict == "merge":
                    worst = max(worst, *(abs(a.weight - b) for a, b in zip(report.fit.parents, weights, strict=True)))
                    proofs.append(report.fit.exact_share or 0.0)
    for kind, counts in right.items():
        print(f"{kind}: {counts.pop('right')} of {rounds} right, {dict(counts)}")
    print(f"linear merges: weights within {worst:.4f}, exact share at least {min(proofs):.4f}")


if __name__ == "__main__":
    main()
