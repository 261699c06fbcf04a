"""How loops are compiled: by numba, to machine code that needs neither numba nor Python."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import binding
from numba.core import types as _types

F = TypeVar("F", bound=Callable[..., Any])

types: Any = _types  # numba does not annotate them

_SCALARS = {"i": types.int64, "d": types.float64, "?": types.boolean}

# What machine code may ask of the process that loads it: the C library's. Vectors' intrinsics become instructions.
_ANYWHERE = {"memcpy", "memset", "memmove"}


def jit(**options: Any) -> Callable[[F], F]:
    """A decorator: ``numba.njit`` for loops that allocate nothing, and do not check for division by zero."""
    njit: Any = numba.njit  # whose types do not know that option
    decorate: Callable[[F], F] = njit(error_model="numpy", _nrt=False, **options)
    return decorate


def machine_code(module: str, name: str, kinds: Sequence[str], machine: Any) -> tuple[str, str, bytes]:
    """Compile the loop ``name`` of a ``module`` beside this one, for arguments of ``kinds`` and a target ``machine`` of LLVM.

    kinds: as `analyzers.numerics.machine_code` has them. Returns the name of the function in the object file, the kinds of its results,
    and the object file. Raises RuntimeError where it would need more than the C library.
    """
    loop: Any = getattr(import_module(f"analyzers.numerics.compiled.{module}"), name)
    signature = tuple(_type(kind) for kind in kinds)
    loop.compile(signature)
    function = loop.overloads[signature]
    code = binding.parse_assembly(loop.inspect_llvm(signature))
    symbol: str = function.fndesc.llvm_func_name
    _keep_only(symbol, code, machine)
    declared = [each.name for each in code.functions if each.is_declaration]
    missing = [each for each in declared if not each.startswith("llvm.") and each not in _ANYWHERE]
    if missing:
        raise RuntimeError(f"{name} would need {', '.join(missing)}")
    return symbol, _result(function.signature.return_type), machine.emit_object(code)


def _keep_only(name: str, module: Any, machine: Any) -> None:
    """Take out what is not called from the function ``name``: numba's ways of calling it from Python."""
    for each in (*module.functions, *module.global_variables):
        if not each.is_declaration and each.name != name:
            each.linkage = "internal"
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    passes.run(module, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options()))


def _type(kind: str) -> Any:
    """numba's type of arguments of a kind."""
    if kind in _SCALARS:
        return _SCALARS[kind]
    if kind[0] == "t":
        return types.UniTuple(types.int64, int(kind[1:]))
    dtype, dimensions = kind.split("x")
    return types.Array(numba.from_dtype(np.dtype(dtype)), int(dimensions), "C", aligned=False)


def _result(returned: Any) -> str:
    """The kinds of results, a letter of `struct` for each."""
    if returned == types.none:
        return ""
    each = returned.types if isinstance(returned, types.BaseTuple) else (returned,)
    return "".join("?" if one == types.boolean else np.dtype(str(one)).char for one in each)
