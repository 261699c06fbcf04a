"""Runs inside a bounded process: answers requests on standard input, a socket, and exits when it is closed."""

import json
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from analyzers.language_models.bounded_process import ENDED_BY, ProgramFailed

# Libraries that transformers imports if they are installed, which takes a second and which no model needs.
_NOT_LOADED = ("torchao", "scipy", "sklearn", "pandas")
_NO_MEMORY = 3


def main(program: str, idle_seconds: int) -> None:
    """Answer requests in a loop. The CPU time limit kills the process, even inside a library."""
    programs, libraries = _open(program)
    with suppress(OSError), socket.socket(fileno=0) as connection, connection.makefile("rwb") as lines:
        lines.write(b"\n")  # signals that the process is ready
        lines.flush()
        for line in lines:
            asked = json.loads(line)
            asked["bytes"] += libraries
            if program == "loading" and sys.platform == "linux":
                connection.settimeout(idle_seconds)
                answer = _forked(programs, asked)
            else:
                answer = json.dumps(_bounded(programs, asked)).encode()
            lines.write(answer + b"\n")
            lines.flush()


def _forked(programs: Any, asked: dict[str, Any]) -> bytes:
    """Answer a request in a fork: libraries are loaded only once, and no repository sees what another one changed."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            theirs.sendall(json.dumps(_bounded(programs, asked)).encode())
        except MemoryError:  # there is no memory even for the answer
            os._exit(_NO_MEMORY)
        os._exit(0)
    theirs.close()
    with ours, ours.makefile("rb") as answer:
        line = answer.read()
    status = os.waitpid(child, 0)[1]
    if status == 0:
        return line
    code = os.waitstatus_to_exitcode(status)
    return json.dumps({"failed": "bytes" if code == _NO_MEMORY else ENDED_BY.get(code, "broke off")}).encode()


def _bounded(programs: Any, asked: dict[str, Any]) -> dict[str, Any]:
    with suppress(ValueError, OSError):  # macOS does not support a memory limit
        resource.setrlimit(resource.RLIMIT_AS, (asked["bytes"], asked["bytes"]))
    signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
    answer = _answer(programs, asked["question"], asked["options"])
    signal.setitimer(signal.ITIMER_PROF, 0)
    return answer


def _open(program: str) -> tuple[Any, int]:
    """Return the object whose methods are the requests, and the address space in bytes that its libraries need on top of the limit."""
    if program == "tokenizer":
        sys.modules["torch"] = cast(Any, None)  # makes transformers skip torch: nothing in this process computes with tensors
        from analyzers.language_models.bounded_process import tokenizer_program

        return tokenizer_program.Programs(), 0
    for library in _NOT_LOADED:
        sys.modules[library] = cast(Any, None)
    from analyzers.language_models.bounded_process import loading_program

    try:  # with CUDA the libraries alone map several gigabytes
        return loading_program.Programs(), int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # macOS, where the limit is not enforced
        return loading_program.Programs(), 0


def _answer(programs: Any, question: str, options: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"answer": getattr(programs, question)(**options)}
    except MemoryError:
        return {"failed": "bytes"}
    except ProgramFailed as refused:
        return {"failed": refused.failed, "why": refused.why[:1000]}
    except BaseException as error:  # a Rust panic is not an Exception
        return {"failed": "said", "why": (str(error) or type(error).__name__)[:1000]}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
