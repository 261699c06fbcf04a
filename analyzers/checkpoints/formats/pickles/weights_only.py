"""Explains why torch.load refuses a pickle with weights_only, as transformers calls it: it accepts few opcodes and few globals."""

import re
from collections.abc import Iterable
from typing import Any

from analyzers.checkpoints.formats.pickles.makers import KNOWN
from analyzers.checkpoints.formats.pickles.objects import Pairs
from analyzers.checkpoints.reference import quoted

_OPCODES = frozenset({
    "PROTO", "STOP", "MARK", "GLOBAL", "NEWOBJ", "REDUCE", "BUILD", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3", "NONE", "NEWFALSE", "NEWTRUE", "EMPTY_TUPLE", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "BINPERSID", "BININT", "BININT1",
    "BININT2", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING", "LONG1", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT",
})  # fmt: skip
# Names that torch accepts and this reader does not know, and vice versa.
_ALSO = re.compile(
    r"torch(\.cuda)?(\.sparse)?\.\w+Tensor|torch\.u?int[1-7]|torch\.storage\.TypedStorage|torch\.per_channel_affine_float_qparams"
    r"|torch\._utils\._rebuild_(device_tensor_from_numpy|wrapper_subclass)"
)
_NOT = re.compile(r"builtins\.frozenset|torch\._?tensor\._rebuild_from_type|torch\.jit\._pickle\.\w+|torch\.(sparse_coo|strided)")


def why_refused(opcodes: Iterable[str], names: Iterable[str]) -> str:
    """Explain what torch.load with weights_only refuses in a pickle of these opcodes and global names; empty if nothing.

    The explanation is a clause whose subject is the file.
    """
    if "FRAME" in opcodes or "MEMOIZE" in opcodes:
        return "its pickle is of protocol 4 or 5, whose opcodes torch.load refuses with weights_only"
    for name in sorted(names):
        full = name.replace("__builtin__", "builtins")
        if _NOT.fullmatch(full) or (name not in KNOWN and not _ALSO.fullmatch(full)):
            return f"it holds {quoted(full, 100)}, which torch.load refuses with weights_only"
    other = min(set(opcodes) - _OPCODES, default=None)
    return f"its pickle has the opcode {other}, which torch.load refuses with weights_only" if other else ""


def as_state_dict(root: Any) -> Any:
    """Return the mapping that transformers makes of a list of (name, value) pairs; any other object is unchanged."""
    pairs = type(root) is list and bool(root) and all(type(pair) in (tuple, list) and len(pair) == 2 for pair in root)
    return Pairs((name, value) for name, value in root) if pairs and all(type(pair[0]) is str for pair in root) else root


def why_no_state_dict(root: Any) -> str:
    """Explain why transformers fails on the object of a pickle that torch.load reads; empty if it does not.

    Returns a clause, as `why_refused` does.
    """
    if type(root) is not Pairs:
        return "it holds no mapping from names to tensors, which transformers expects"
    if any(type(key) is not str for key, _ in root):
        return "some of its keys are not strings, and transformers expects names"
    return ""
