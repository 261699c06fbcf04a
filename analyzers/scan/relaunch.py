"""The processes that ``accelerate launch`` was asked for and did not start.

Without several GPUs and without ``--multi_gpu`` accelerate starts a single process, whatever ``--num_processes`` says, and does
not tell it the number: only accelerate's own command line, the parent's, does. That process then becomes torchrun, which
starts its command as often as was asked.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def started_alone(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether several processes were asked of accelerate and it started this one without a word."""
    return "ACCELERATE_USE_CPU" in variables and "MASTER_PORT" in variables and "RANK" not in variables


def parent_words() -> list[str]:
    """The command line of the process that started this one; empty where the system does not show it."""
    try:
        return Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
    except (OSError, ValueError):
        return []


def torchrun(launcher: Sequence[str], command: Sequence[str], variables: Mapping[str, str] = os.environ) -> list[str] | None:
    """The command that starts what accelerate was asked for; None where ``launcher`` does not say how many processes that is.

    launcher: the words of accelerate's command line; command: those of this process after the interpreter, as in
    `sys.orig_argv`; variables: accelerate's, with the address of the first machine where there are several.
    """
    program = list(command[1:])
    if not program or list(launcher[-len(program) :]) != program:
        return None  # started by something in between: the words are not accelerate's
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, default in (("processes", 0), ("machines", 1)):
        options.add_argument(f"--num_{name}", f"--num-{name}", type=int, default=default)
    options.add_argument("--machine_rank", "--machine-rank", type=int, default=0)
    try:
        asked, _ = options.parse_known_args(launcher[1 : -len(program)])
    except argparse.ArgumentError:
        return None
    if not 1 <= asked.num_machines <= asked.num_processes or asked.num_processes == 1:
        return None
    where = ["--standalone"]
    if asked.num_machines > 1:
        where = [f"--nnodes={asked.num_machines}", f"--node_rank={asked.machine_rank}"]
        where += [f"--master_addr={variables['MASTER_ADDR']}", f"--master_port={variables['MASTER_PORT']}"]
    each = f"--nproc_per_node={asked.num_processes // asked.num_machines}"
    return [sys.executable, "-m", "torch.distributed.run", *where, each, "--no_python", sys.executable, *command]
