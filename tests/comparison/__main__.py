"""Runs ``python -m tests.comparison``: see the package."""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.hub import LocalHub
from tests.hub.architectures import llama
from tests.hub.server import client_environ

from .checkpoints import make
from .differences import differences
from .runs import RUNS

_SMALL = {"layers": 4, "hidden": 256, "width": 704, "vocabulary": 1000, "shards": 2}


def main() -> int:
    """Run the command. Returns 0 if nothing differs."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.comparison", description="Compare the JSON of many runs before and after a change."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    saving = commands.add_parser("save", help="run every command and keep its JSON")
    saving.add_argument("folder", type=Path, help="where to write; checkpoints are made next to it once, in 'checkpoints'")
    saving.add_argument("--checkout", type=Path, default=Path.cwd(), help="whose code is run (default: this one)")
    saving.add_argument("--only", default="", metavar="PREFIX", help="only the runs whose name starts so")
    saving.add_argument("--options", default="", help="of every command in addition, such as '--device cuda'")
    comparing = commands.add_parser("compare", help="name every value that differs")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--tolerance", type=float, default=1e-9, help="relative difference that counts as rounding (default 1e-9)")
    comparing.add_argument("--only", default="", metavar="PREFIX")
    options = parser.parse_args()
    if options.command == "save":
        return save(options.folder, options.checkout.resolve(), options.only, options.options)
    return compare(options.before, options.after, options.tolerance, options.only)


def save(folder: Path, checkout: Path, only: str, options: str) -> int:
    """Write ``folder``/NAME.json for each run. Returns 1 if one fails."""
    folder.mkdir(parents=True, exist_ok=True)
    files = folder.resolve().parent / "checkpoints"
    if not files.exists():
        files.mkdir()
        make(files)
    failed = 0
    with ExitStack() as stack:
        hub = stack.enter_context(LocalHub())
        hub.add("org/large", llama(**_SMALL))  # type: ignore[arg-type]
        hub.add("org/large-tuned", llama(**_SMALL, update="scattered-0.3"))  # type: ignore[arg-type]
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        variables = {**os.environ, **client_environ(hub.url, home), "PYTHONPATH": str(checkout)}
        for name, command in RUNS.items():
            if not name.startswith(only):
                continue
            arguments = shlex.split(command.replace("\\", "\\\\").format(files=files)) + shlex.split(options)
            run = subprocess.run(
                [sys.executable, "-m", "analyzers", *arguments, "--json"], cwd=checkout, env=variables, capture_output=True, text=True
            )
            (folder / f"{name}.json").write_text(run.stdout if run.returncode == 0 else json.dumps({"error": run.stderr[-500:]}))
            failed += run.returncode != 0
            print(f"{'done' if run.returncode == 0 else 'FAILED'}  {name}", flush=True)
    return int(failed > 0)


def compare(before: Path, after: Path, tolerance: float, only: str) -> int:
    """Print the paths of values that differ. Returns 1 if there are any."""
    differing = 0
    for path in sorted(before.glob(f"{only}*.json")):
        other = after / path.name
        if not other.exists():
            found = ["there is no such run after"]
        else:
            was, now = (json.loads(each.read_text()) for each in (path, other))
            found = ["a run failed"] if "error" in was or "error" in now else list(differences(was, now, tolerance))
        differing += bool(found)
        print(f"{path.stem}: {f'{len(found)} differences' if found else 'same'}")
        for line in found[:12]:
            print(f"    {line}")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
