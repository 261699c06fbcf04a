"""What bounded processes are forked from, for each that comes through the socket that is standard input, until that is closed."""

import gc
import json
import os
import resource
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any, BinaryIO, cast

sys.modules["torch"] = cast(Any, None)  # so that transformers does without it: nothing here computes with tensors

from analyzers.language_models.bounded_process.programs import Programs  # noqa: E402

# How often it is looked whether a process has ended, or nobody waits for it any more.
_LOOK_MS = 50
_ENDED = {signal.SIGPROF: "seconds", signal.SIGABRT: "bytes", signal.SIGKILL: "bytes"}


def main() -> None:
    """Fork until nobody is there to ask."""
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    channel = socket.socket(fileno=0)
    while True:
        _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
        if not descriptors:
            return
        if not os.fork():
            channel.close()
            with suppress(OSError):  # nobody listens any more
                _watch(socket.socket(fileno=descriptors[0]))
            os._exit(0)
        os.close(descriptors[0])


def _watch(connection: socket.socket) -> None:
    """Have a process answer, for as long as somebody listens, and say what ended it if it did not end by itself."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.sendall(b"\n")  # here it is
    process = os.fork()
    if not process:
        with suppress(OSError), connection.makefile("rwb") as lines:
            _answer(cast(BinaryIO, lines))
        os._exit(0)
    closed = select.poll()
    closed.register(connection, 0)  # what is always told: that the other side has closed it
    while (ended := os.waitpid(process, os.WNOHANG)) == (0, 0):
        if closed.poll(_LOOK_MS):
            os.kill(process, signal.SIGKILL)
    status = ended[1]
    if os.WIFSIGNALED(status):
        connection.sendall(_line(failed=_ENDED.get(signal.Signals(os.WTERMSIG(status)), "broke off")))


def _answer(lines: BinaryIO) -> None:
    """Answer question after question. A limit on time ends the process, even within a library."""
    programs = Programs()
    for line in lines:
        asked = json.loads(line)
        _bound(asked["bytes"])
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
        lines.write(_reply(programs, asked["question"], asked["options"]))
        lines.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)


def _reply(programs: Programs, question: str, options: dict[str, Any]) -> bytes:
    try:
        return _line(answer=getattr(programs, question)(**options))
    except MemoryError:
        return _line(failed="bytes")
    except BaseException as error:  # a library that panics raises what is no Exception
        failed, why = error.args if type(error).__name__ == "Refused" else ("said", str(error) or type(error).__name__)
        return _line(failed=failed, why=why[:1000])


def _bound(memory: int) -> None:
    with suppress(ValueError, OSError):  # macOS bounds no memory
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def _line(**answer: Any) -> bytes:
    return json.dumps(answer).encode() + b"\n"


if __name__ == "__main__":
    main()
