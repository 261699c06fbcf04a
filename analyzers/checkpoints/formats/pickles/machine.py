"""Interprets a pickle without running anything: opcodes act on a stack, and names become plain descriptions (`constructors`).

The standard library decodes the opcodes of protocols 1 to 5. They produce numbers, strings, bytes, tuples, lists, mappings (as `Pairs`)
and what `construct` describes. An opcode creates at most one object, and the length of every string and number is known before it is
created. Opcodes, the values that calls copy, and the walks over the result are charged to one `Budget`.
"""

import io
from collections.abc import Callable
from pickletools import genops
from typing import IO, Any, cast

from analyzers.checkpoints.formats.faults import Damaged, Excess
from analyzers.checkpoints.formats.pickles.constructors import STORAGES, Global, Opaque, Pairs, Storage, construct
from analyzers.checkpoints.reference import quoted
from analyzers.core import limits

PICKLE_BYTES = 100_000_000  # The pickle of a PyTorch file, which describes its tensors, is decoded in memory.
_OVERFLOW = 1 << 62
_LONGEST = 4 * limits.TENSOR_NAME_LENGTH  # longer arguments are neither names nor lengths: they are skipped
_PER_LINE = 6  # operations: arguments that are lines are slow, and pickles since protocol 1 have a few for each class
_COPIED = 8  # values per operation, in the arguments of a call
_PER_STORAGE = 60  # operations; a tensor takes about 40, its entry in an optimizer a few more
_BYTES = 8  # bytes per operation: vocabularies and lists of floats have this many, malicious pickles 1 to 5
_MOST = 15  # multiples of the operations allowed to any pickle, for its bytes and storages


class _Skipped(Exception):
    """The argument of an opcode is too long and was skipped."""


class Budget:
    """Bounds the operations that a file takes. nbytes: of its pickle, which admit more, as storages do: large models have long pickles."""

    def __init__(self, nbytes: int) -> None:
        self._left, self._grants = limits.PICKLE_OPCODES, (_MOST - 1) * limits.PICKLE_OPCODES
        self.grant(nbytes // _BYTES)

    def spend(self, operations: int = 1) -> None:
        """Take ``operations`` from the budget. Raises Excess if it is exhausted."""
        self._left -= operations
        if self._left < 0:
            raise Excess("has a pickle that takes too many operations for its size and number of storages.")

    def grant(self, operations: int) -> None:
        """Add ``operations`` to the budget, up to a limit for all grants together."""
        granted = min(operations, self._grants)
        self._left, self._grants = self._left + granted, self._grants - granted


class Machine:
    """Interprets the next pickle in a buffered file. budget: for all pickles of a file.

    storages: the storages that it names, by key; opaque: names of unknown classes and functions that it calls, as keys; names: its
    globals; protocol: the protocol that its newest opcode is from.
    """

    def __init__(self, source: IO[bytes], budget: Budget) -> None:
        self.storages: dict[str, Storage] = {}
        self.opaque: dict[str, None] = {}
        self.names: set[str] = set()
        self.protocol = 0
        self.budget = budget
        self._source = source
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks below each mark
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Return the object that the pickle describes. Raises Damaged, Excess."""
        spend = self.budget.spend
        while True:
            try:
                for opcode, argument, _ in genops(cast("IO[bytes]", self)):  # calls read and readline only
                    spend()
                    name = opcode.name
                    if name not in _STEPS:
                        raise Damaged(f"its pickle has an opcode that no state dict needs, {name}")
                    if opcode.proto > self.protocol:
                        self.protocol = opcode.proto
                    _STEPS[name](self, argument)
                return self._stack.pop()
            except _Skipped:
                self.push(Opaque("?"))
            except IndexError:
                raise Damaged("its pickle pops more than its stack holds") from None
            except KeyError:
                raise Damaged("its pickle refers to an object that it never memoized") from None
            except ValueError:  # raised by genops
                raise Damaged("its pickle has an unknown opcode or an invalid argument") from None

    def read(self, count: int) -> bytes:
        """Return the next ``count`` bytes of the pickle. Raises Damaged if there are fewer."""
        if count > _LONGEST:
            self._source.seek(min(count, PICKLE_BYTES), io.SEEK_CUR)
            raise _Skipped
        data = self._source.read(count)
        if len(data) < count:
            raise Damaged("its pickle is cut off")
        return data

    def readline(self) -> bytes:
        """Return the bytes up to and including the next line feed."""
        self.budget.spend(_PER_LINE)
        line = self._source.readline(_LONGEST)
        if not line.endswith(b"\n") or b"\\" in line:  # `pickletools` warns of unknown escapes, and no name of a class has any
            raise Damaged("its pickle is cut off, or has a line that is long or has escapes")
        return line

    def push(self, value: Any) -> None:
        """Push ``value``."""
        self._stack.append(value)

    def _mark(self, _: None) -> None:
        if len(self._below) >= limits.PICKLE_DEPTH:
            raise Excess(f"has a pickle nested deeper than {limits.PICKLE_DEPTH:,} levels.")
        self._below.append(self._stack)
        self._stack = []

    def _pop_mark(self, _: None = None) -> list[Any]:
        """Remove and return everything above the last mark."""
        items, self._stack = self._stack, self._below.pop()
        return items

    def _pop(self, _: None) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._pop_mark()

    def _put(self, index: int | None) -> None:
        self._memo[len(self._memo) if index is None else index] = self._stack[-1]

    def _tuple(self, length: int) -> None:
        items = [self._stack.pop() for _ in range(length)]
        self.push(tuple(items[::-1]))

    def _extend(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is Opaque:
            return  # items of a subclass of list or set, or of a deque
        if type(target) is not list:
            raise Damaged("its pickle appends to something that is not a list")
        target.extend(values)

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is Opaque:
            return  # items of a subclass of dict
        if type(target) is not Pairs or len(items) % 2:
            raise Damaged("its pickle sets an item of something that is not a mapping, or a key without a value")
        target.extend(zip(items[::2], items[1::2], strict=True))

    def _set_item(self, _: None) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def _stack_global(self, _: None) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if type(name) is not str or type(module) is not str:
            raise Damaged("its pickle names a global by something that is not text")
        self._global(f"{module} {name}")

    def _global(self, argument: str) -> None:
        """Push a global by its module and name, with a space between them."""
        name = argument.replace(" ", ".", 1)
        self.names.add(name)
        self.push(Global(name))

    def _reduce(self, _: Any) -> None:
        """Push the description of a call."""
        arguments, function = self._stack.pop(), self._stack.pop()
        if type(function) not in (Global, Opaque) or type(arguments) is not tuple:
            raise Damaged("its pickle calls something that is not callable, or without a tuple of arguments")
        # A call costs as much as its arguments are long: a short pickle could otherwise copy the same ones without end.
        self.budget.spend((len(arguments) + sum(len(each) for each in arguments if isinstance(each, tuple | list))) // _COPIED)
        try:
            made = construct(function, arguments)
        except TypeError:  # other arguments than the constructor takes
            raise Damaged(f"its pickle calls {quoted(function.name)} with other arguments than torch does") from None
        if type(made) is Opaque and not made.tensor:
            self.opaque[made.name] = None
        self.push(made)

    def _build(self, _: None) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        if type(target) is Opaque:
            target.state = state
        # Attributes of a mapping, such as the versions of modules in a state dict, are discarded.
        elif type(target) is not Pairs and target is not None:
            raise Damaged("its pickle sets attributes of something that has none")

    def _persistent(self, _: None) -> None:
        """Push a storage: "storage", its class, key, device, length, and in old files None in place of a view."""
        identity = self._stack.pop()
        if type(identity) is not tuple or len(identity) not in (5, 6) or identity[0] != "storage" or identity[5:] not in ((), (None,)):
            raise Damaged("its pickle names a storage in an unknown way")
        kind, key, _, numel = identity[1:5]
        known = type(kind) is Global and kind.name in STORAGES
        if not known or type(key) is not str or type(numel) is not int or not 0 <= numel < _OVERFLOW:
            raise Damaged("its pickle describes a storage by something other than type, key and length")
        storage = Storage(key, STORAGES[kind.name], numel)
        if key not in self.storages:
            self.budget.grant(_PER_STORAGE)
        if self.storages.setdefault(key, storage).nbytes != storage.nbytes:
            raise Damaged(f"the storage {quoted(key)} has two lengths")
        self.push(storage)


# The effect of each opcode, by its name in `pickletools`. torch.save writes no others, such as those for out-of-band buffers.
_STEPS: dict[str, Callable[[Machine, Any], object]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda m, _: None),
    "MARK": Machine._mark, "POP": Machine._pop, "POP_MARK": Machine._pop_mark,
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), Machine._put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda m, index: m.push(m._memo[index])),
    "NONE": Machine.push, "NEWTRUE": lambda m, _: m.push(True), "NEWFALSE": lambda m, _: m.push(False),
    **dict.fromkeys(("INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"), Machine.push),
    **dict.fromkeys(("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "SHORT_BINSTRING", "BINSTRING"), Machine.push),
    **dict.fromkeys(("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"), Machine.push), "BYTEARRAY8": lambda m, _: m.push(Opaque("?")),
    "EMPTY_TUPLE": lambda m, _: m.push(()), "TUPLE": lambda m, _: m.push(tuple(m._pop_mark())),
    "TUPLE1": lambda m, _: m._tuple(1), "TUPLE2": lambda m, _: m._tuple(2), "TUPLE3": lambda m, _: m._tuple(3),
    **dict.fromkeys(("EMPTY_LIST", "EMPTY_SET"), lambda m, _: m.push([])), "FROZENSET": lambda m, _: m.push(m._pop_mark()),
    "APPEND": lambda m, _: m._extend([m._stack.pop()]), **dict.fromkeys(("APPENDS", "ADDITEMS"), lambda m, _: m._extend(m._pop_mark())),
    "EMPTY_DICT": lambda m, _: m.push(Pairs()),
    "SETITEM": Machine._set_item, "SETITEMS": lambda m, _: m._set(m._pop_mark()),
    "GLOBAL": Machine._global, "STACK_GLOBAL": Machine._stack_global,
    "REDUCE": Machine._reduce, "NEWOBJ": Machine._reduce, "BUILD": Machine._build,
    "NEWOBJ_EX": lambda m, _: m._reduce(m._stack.pop()),  # named arguments are discarded
    "BINPERSID": Machine._persistent,
}  # fmt: skip
