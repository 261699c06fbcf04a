"""The program of a bounded process: answers the requests on standard input, a socket, and exits when it is closed."""

import json
import resource
import signal
import socket
import sys
from contextlib import suppress
from typing import Any, cast

sys.modules["torch"] = cast(Any, None)  # makes transformers skip torch: nothing in this process computes with tensors

from analyzers.language_models.bounded_process import ProgramFailed  # noqa: E402
from analyzers.language_models.bounded_process.programs import Programs  # noqa: E402


def main() -> None:
    """Answer requests in a loop. The CPU time limit kills the process, even inside a library."""
    programs = Programs()
    with suppress(OSError), socket.socket(fileno=0) as connection, connection.makefile("rwb") as lines:
        lines.write(b"\n")  # ready
        lines.flush()
        for line in lines:
            asked = json.loads(line)
            with suppress(ValueError, OSError):  # macOS does not support a memory limit
                resource.setrlimit(resource.RLIMIT_AS, (asked["bytes"], asked["bytes"]))
            signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
            lines.write(json.dumps(_answer(programs, asked["question"], asked["options"])).encode() + b"\n")
            lines.flush()
            signal.setitimer(signal.ITIMER_PROF, 0)


def _answer(programs: Programs, question: str, options: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"answer": getattr(programs, question)(**options)}
    except MemoryError:
        return {"failed": "bytes"}
    except ProgramFailed as refused:
        return {"failed": refused.failed, "why": refused.why[:1000]}
    except BaseException as error:  # a Rust panic is not an Exception
        return {"failed": "said", "why": (str(error) or type(error).__name__)[:1000]}


if __name__ == "__main__":
    main()
