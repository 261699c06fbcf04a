"""How loops are compiled: by numba, once, then cached; they release the GIL, so that threads run them side by side."""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_linear_algebra = True


def leave_out_linear_algebra() -> None:
    """Have numba, once it is loaded, leave out SciPy's linear algebra, which no loop here uses: a quarter of a second, and some 60 MB.

    For a process of our own: loops of others that call ``np.dot`` would not compile in it.
    """
    global _linear_algebra
    _linear_algebra = False


def jit(**options: Any) -> Callable[[F], F]:
    """A decorator: ``numba.njit`` with these options besides."""
    import numba

    if not _linear_algebra:
        import numba.np.linalg

        numba.np.linalg.ensure_blas = _not_loaded  # asked when the first loop is compiled or loaded
    decorate: Callable[[F], F] = numba.njit(nogil=True, cache=True, **options)
    return decorate


def _not_loaded() -> None:
    raise ImportError("left out, see analyzers.numerics.compiler")
