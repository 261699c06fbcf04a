"""Long headers parsed in a process of their own, with limits on its memory and time, one at a time.

Parsing takes several times the bytes of a header, and Python keeps much of that. The app must stay small and answer others meanwhile.
``python -m`` this module is the process: standard input holds the file's size, its path and the header; standard output the result.
"""

import marshal
import os
import resource
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from analyzers import limits
from analyzers.checkpoints.header import Header, HeaderTensor, parse_header
from analyzers.checkpoints.reference import quoted
from analyzers.errors import InvalidCheckpoint, LimitExceeded

_ROOT = Path(__file__).parents[2]
# What an interpreter needs to start like this one; tokens stay here.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_SECONDS = 60
_one = threading.Lock()


def parse_apart(raw: bytes | bytearray, file_size: int, path: str = "the file") -> Header:
    """`parse_header`, in a process of its own for a header of more than HEADER_PROCESS_BYTES. Raises what it raises."""
    if len(raw) <= limits.HEADER_PROCESS_BYTES:
        return parse_header(bytes(raw), file_size, path)
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | {"OPENBLAS_NUM_THREADS": "1"}
    environment |= {name: value for name, value in os.environ.items() if name.startswith("MANTISSA_") and "TOKEN" not in name}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    with _one, suppress(subprocess.TimeoutExpired, OSError):
        asked = marshal.dumps((file_size, path, bytes(raw)))
        command = [sys.executable, "-P", "-m", __name__]
        ran = subprocess.run(  # noqa: S603 - the program is ours
            command, input=asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, timeout=_SECONDS, check=False
        )
        if ran.returncode == 0:
            return _header(marshal.loads(ran.stdout))  # noqa: S302 - written by our own program
    raise LimitExceeded(
        f"The header of {quoted(path, 200)} has {len(raw):,} bytes and needs more than {limits.HEADER_PROCESS_MEMORY:,} bytes of memory "
        f"or {_SECONDS} seconds (MANTISSA_HEADER_PROCESS_MEMORY)."
    )


def _header(answer: Any) -> Header:
    failure, said, tensors, metadata, nbytes = answer
    if failure:
        raise {"InvalidCheckpoint": InvalidCheckpoint, "LimitExceeded": LimitExceeded}[failure](said)
    return Header(tuple(HeaderTensor(*tensor) for tensor in tensors), metadata, nbytes)


def _answer(asked: BinaryIO, answer: BinaryIO) -> None:
    with suppress(ValueError, OSError):  # macOS does not support a memory limit
        resource.setrlimit(resource.RLIMIT_AS, (limits.HEADER_PROCESS_MEMORY, limits.HEADER_PROCESS_MEMORY))
    file_size, path, raw = marshal.load(asked)  # noqa: S302 - written by our own program
    try:
        header = parse_header(raw, file_size, path)
        marshal.dump((None, "", [tuple(tensor) for tensor in header.tensors], dict(header.metadata), header.nbytes), answer)
    except (InvalidCheckpoint, LimitExceeded) as error:
        marshal.dump((type(error).__name__, str(error), [], {}, 0), answer)


if __name__ == "__main__":
    _answer(sys.stdin.buffer, sys.stdout.buffer)
