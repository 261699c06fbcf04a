"""Fuzz one parser: ``python -m tests.fuzz safetensors --seconds 60``, in limited memory; a broken input is written and named."""

import argparse
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path
from random import Random

from tests.fuzz.fuzzer import Broken, Tally, examine, fuzz
from tests.fuzz.targets import TARGETS

_MEMORY = 1 << 30  # bytes beyond the memory of the libraries


def main() -> int:
    """Return 1 if a parser broke."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="default: random")
    parser.add_argument("--number", type=int, default=None, help="only this input of the seed")
    asked = parser.parse_args()
    target = TARGETS[asked.target]
    seed = Random().randrange(1 << 32) if asked.seed is None else asked.seed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for data in target.corpus():  # load the parser's modules before memory is limited
            examine(target, data, Tally())
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
    end: float = time.monotonic() + asked.seconds
    print(f"{target.name}: seed {seed}", flush=True)
    if asked.number is not None:
        data = target.vary(Random(f"{target.name} {seed} {asked.number}"), target.corpus())
        sys.stdout.buffer.write(data)
        return 0
    numbers = 0

    def until(number: int) -> bool:
        nonlocal numbers
        numbers = number
        return time.monotonic() > end

    try:
        tally = fuzz(target, seed, until)
    except Broken as broken:
        path = Path(tempfile.gettempdir()) / f"broken-{target.name}"
        path.write_bytes(broken.data)
        print(f"BROKEN {broken} (written to {path})")
        return 1
    print(f"{numbers:,} inputs, {tally.read:,} read, of them {tally.compared:,} as by the library, {tally.refused:,} refused")
    for kind, count in tally.stricter.most_common(20):
        print(f"  {count:,} refused that the library reads: {kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
