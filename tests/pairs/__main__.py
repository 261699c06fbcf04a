"""Prints what the product says of each kind: ``python -m tests.pairs [KIND ...] [--seeds 1]``."""

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from tests.pairs.expected import expected
from tests.pairs.generate import KINDS
from tests.pairs.judge import answer
from tests.pairs.test_pairs import storages


def main() -> None:
    """Print one line per kind, and below it what is wrong, each with the number of cases."""
    parser = argparse.ArgumentParser(prog="python -m tests.pairs")
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    wrong_cases = cases = 0
    for kind in options.kinds:
        verdicts: Counter[str] = Counter()
        relations: Counter[str] = Counter()
        problems: Counter[str] = Counter()
        for storage in storages(kind):
            for seed in range(options.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    found = answer(kind, storage, seed, Path(folder))
                verdicts[found.verdict] += 1
                relations += found.relations
                problems.update(found.problems)
                cases, wrong_cases = cases + 1, wrong_cases + bool(found.problems)
        right = expected(kind)
        wanted = f"{'|'.join(sorted(right.verdicts))}; {'|'.join(sorted(right.relation or ())) or '-'}"
        print(f"{kind:28} {dict(verdicts)} {dict(relations)}   right: {wanted}", flush=True)
        for problem, times in problems.most_common(6):
            print(f"    {times}x {problem}")
    print(f"{wrong_cases} of {cases} cases are wrong")


if __name__ == "__main__":
    main()
