"""Server of bounded processes: forks one for each socket received on standard input, and exits when standard input closes."""

import gc
import json
import resource
import select
import signal
import socket
import sys
from contextlib import suppress
from multiprocessing import get_context
from socketserver import BaseRequestHandler, BaseServer, ForkingMixIn
from typing import Any, cast

sys.modules["torch"] = cast(Any, None)  # makes transformers skip torch: nothing in this process computes with tensors

from analyzers.language_models.bounded_process.programs import Programs, Refused  # noqa: E402

_LOOK_SECONDS = 0.05
_ENDED_BY = {signal.SIGPROF: "seconds", signal.SIGABRT: "bytes", signal.SIGKILL: "bytes"}


class _Server(ForkingMixIn, BaseServer):
    max_children = 10_000

    def __init__(self, channel: socket.socket) -> None:
        super().__init__("", _Handler)
        self.channel = channel

    def fileno(self) -> int:
        return self.channel.fileno()

    def get_request(self) -> tuple[socket.socket, str]:
        _, descriptors, _, _ = socket.recv_fds(self.channel, 1, 1)
        if not descriptors:
            raise SystemExit  # the parent program has exited
        return socket.socket(fileno=descriptors[0]), ""

    def close_request(self, request: Any) -> None:
        request.close()


class _Handler(BaseRequestHandler):
    """Runs in the forked process: a child answers requests while the client is connected; this process reports what ended the child."""

    server: _Server
    request: socket.socket

    def handle(self) -> None:
        self.server.channel.close()
        self.request.sendall(b"\n")  # ready
        worker = get_context("fork").Process(target=_answer, args=(self.request,))
        worker.start()
        hung_up = select.poll()
        hung_up.register(self.request, 0)  # register no event: hang-up is always reported
        while worker.is_alive():
            worker.join(_LOOK_SECONDS)
            if hung_up.poll(0):
                worker.kill()
        signalled = -(worker.exitcode or 0)
        if signalled > 0:
            self.request.sendall(_line(failed=_ENDED_BY.get(signal.Signals(signalled), "broke off")))


def _answer(connection: socket.socket) -> None:
    """Answer requests in a loop. The CPU time limit kills the process, even inside a library."""
    programs = Programs()
    with suppress(OSError), connection.makefile("rwb") as lines:
        for line in lines:
            asked = json.loads(line)
            with suppress(ValueError, OSError):  # macOS does not support a memory limit
                resource.setrlimit(resource.RLIMIT_AS, (asked["bytes"], asked["bytes"]))
            signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
            lines.write(_reply(programs, asked["question"], asked["options"]))
            lines.flush()
            signal.setitimer(signal.ITIMER_PROF, 0)


def _reply(programs: Programs, question: str, options: dict[str, Any]) -> bytes:
    try:
        return _line(answer=getattr(programs, question)(**options))
    except MemoryError:
        return _line(failed="bytes")
    except Refused as refused:
        return _line(failed=refused.failed, why=refused.why[:1000])
    except BaseException as error:  # a Rust panic is not an Exception
        return _line(failed="said", why=(str(error) or type(error).__name__)[:1000])


def _line(**answer: Any) -> bytes:
    return json.dumps(answer).encode() + b"\n"


if __name__ == "__main__":
    gc.freeze()  # keeps the memory pages of the imports shared after the fork
    with suppress(OSError):
        _Server(socket.socket(fileno=0)).serve_forever()
