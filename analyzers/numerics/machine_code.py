"""Compiled loops without their compiler: the machine code that numba once made is kept, and loaded by LLVM alone.

numba and its types take half a second and 100 MB in every process; machine code that is there already takes a tenth of that.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_HERE = Path(__file__).parent

# Where loops take constants from, besides each other.
CONSTANTS = ("alike", "pair_cells", "runs", "sketches")

# The first words of a file: what it is, and which arrangement of arguments the code in it expects.
_FORMAT = "mantissa loop 1"

# Of numba's functions: they returned a value, or nothing.
_DONE = (0, -2)

_RESULTS: dict[str, Any] = {
    "?": ctypes.c_bool,
    "B": ctypes.c_uint8,
    "H": ctypes.c_uint16,
    "I": ctypes.c_uint32,
    "L": ctypes.c_uint64,
    "l": ctypes.c_int64,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
}

_SCALARS: dict[str, Any] = {"i": ctypes.c_int64, "d": ctypes.c_double, "?": ctypes.c_bool}

_lock = threading.RLock()


class Loop:
    """A loop of `compiled`: function ``name`` of ``module`` there. Safe to call from several threads; the GIL is released meanwhile.

    Arguments are numpy arrays whose elements lie side by side, at any address; numbers; and tuples of integers. For each combination of
    their types there is machine code, compiled at the first call ever on a machine and kept. Raises ValueError for other arrays, and
    RuntimeError where the loop raises.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name
        self._ready: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        found = tuple([(each.dtype.char, each.ndim) if isinstance(each, np.ndarray) else _type(each) for each in arguments])
        return (self._ready.get(found) or self._load(found, arguments))(arguments)

    def _load(self, found: tuple[Any, ...], arguments: tuple[Any, ...]) -> Callable[..., Any]:
        with _lock:
            if found not in self._ready:
                kinds = tuple(map(_kind, arguments))
                symbol, result, code = self._kept(kinds)
                self._ready[found] = _callable(_loader().address(symbol, code), kinds, result)
            return self._ready[found]

    def _kept(self, kinds: tuple[str, ...]) -> tuple[str, str, bytes]:
        file = f"{self._module}.{self._name}-{'-'.join(kinds)}"
        for folder in _folders():
            if (kept := _read(folder / file)) is not None:
                return kept
        from analyzers.numerics.compiled.compiler import machine_code

        made = machine_code(self._module, self._name, kinds, _loader().machine)
        for folder in _folders():
            if _write(folder / file, *made):
                break
        return made


def _type(argument: Any) -> Any:
    """What tells types of arguments other than arrays apart."""
    return len(argument) if isinstance(argument, tuple) else type(argument)


def _kind(argument: Any) -> str:
    """The type of an argument, in a few characters: numba's types are made of them where it compiles."""
    if isinstance(argument, np.ndarray):
        return f"{argument.dtype.kind}{argument.itemsize}x{argument.ndim}"
    if isinstance(argument, bool | np.bool_):
        return "?"
    if isinstance(argument, int | np.integer):
        return "i"
    if isinstance(argument, tuple):
        return f"t{len(argument)}"
    return "d"


def _callable(address: int, kinds: tuple[str, ...], result: str) -> Callable[[tuple[Any, ...]], Any]:
    """The function at ``address``, which takes a tuple of arguments. numba's are called with places for result and error first."""
    fields = [(f"_{number}", _RESULTS[each]) for number, each in enumerate(result or "L")]
    place: Any = type("Result", (ctypes.Structure,), {"_fields_": fields})
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *(each for kind in kinds for each in _types(kind)))
    function, names = prototype(address), [name for name, _ in fields]

    def call(arguments: tuple[Any, ...]) -> Any:
        found, error = place(), ctypes.c_void_p()
        flat: list[Any] = [ctypes.byref(found), ctypes.byref(error)]
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                if not (argument.flags.c_contiguous and argument.dtype.isnative):
                    raise ValueError("the elements of an array do not lie side by side, or not as this machine has them")
                flat += (None, None, argument.size, argument.itemsize, _address(argument), *argument.shape, *argument.strides)
            elif isinstance(argument, tuple):
                flat += argument
            else:
                flat.append(argument)
        if function(*flat) not in _DONE:
            raise RuntimeError("a compiled loop refused its arguments")
        if len(result) > 1:
            return tuple([getattr(found, name) for name in names])
        return getattr(found, names[0]) if result else None

    return call


def _address(array: NDArray[Any]) -> int:
    if array.size and array.flags.writeable:  # what numpy says itself of where an array lies takes four times as long
        memory: Any = array
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return array.ctypes.data


def _types(kind: str) -> list[Any]:
    """What an argument is passed as. An array: owner and object (none), elements, bytes of one, address, shape, strides."""
    if kind in _SCALARS:
        return [_SCALARS[kind]]
    if kind[0] == "t":
        return [ctypes.c_int64] * int(kind[1:])
    return [ctypes.c_void_p] * (5 + 2 * int(kind.split("x")[1]))  # all of them words; ctypes passes these fastest


class _Loader:
    """LLVM's loader of object files. Not safe to use from several threads."""

    def __init__(self) -> None:
        from llvmlite import __version__, binding

        self._llvm: Any = binding
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        cpu, features = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
        self.target = f"{__version__} {cpu} {features}"
        self.machine: Any = binding.Target.from_default_triple().create_target_machine(
            cpu=cpu, features=features, opt=3, codemodel="jitdefault", jit=True
        )
        self._engine: Any = binding.create_mcjit_compiler(binding.parse_assembly(""), self.machine)

    def address(self, symbol: str, code: bytes) -> int:
        """Load an object file, and find a function of it."""
        self._engine.add_object_file(self._llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        address: int = self._engine.get_function_address(symbol)
        return address


@cache
def _loader() -> _Loader:
    return _Loader()


@cache
def _folders() -> list[Path]:
    """Where code is looked for, and kept where that can be: beside the sources, then in the user's own cache.

    There is a folder for each state of the sources, the compiler and the processor.
    """
    sources = [*sorted((_HERE / "compiled").glob("*.py")), *(_HERE / f"{name}.py" for name in CONSTANTS)]
    state = [_FORMAT, _loader().target, *(path.read_bytes() for path in sources)]
    name = f"loops-{sha256(repr(state).encode()).hexdigest()[:16]}"
    folders = [_HERE / "__pycache__" / name]
    with suppress(RuntimeError):  # no home
        folders.append(Path.home() / ".cache" / "mantissa" / name)
    return folders


def _read(path: Path) -> tuple[str, str, bytes] | None:
    """Code that was kept there; None where there is none, not all of it, or where it is of neither this user nor who has the sources."""
    with suppress(OSError, ValueError), path.open("rb") as file:
        owner = os.fstat(file.fileno()).st_uid
        checksum, content = file.read().split(b"\n", 1)
        if owner in (os.getuid(), _HERE.stat().st_uid) and sha256(content).hexdigest().encode() == checksum:
            symbol, result, code = content.split(b"\n", 2)
            return symbol.decode(), result.decode(), code
    return None


def _write(path: Path, symbol: str, result: str, code: bytes) -> bool:
    """Keep code there, and return whether that could be done; others that start meanwhile see all of it or nothing."""
    content = f"{symbol}\n{result}\n".encode() + code
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_bytes(sha256(content).hexdigest().encode() + b"\n" + content)
        part.replace(path)
    except OSError:
        return False
    return True
