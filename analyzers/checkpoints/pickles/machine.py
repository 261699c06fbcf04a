"""A decoder of pickles that runs nothing: opcodes onto a stack, and known names into plain descriptions (`objects`).

Protocols 0 to 5, as far as `torch.save` uses or used them. What opcodes make here: numbers, texts, tuples, lists, mappings
as `Entries`, and what `GLOBALS` says; everything else that a pickle can hold in a state dict becomes `OPAQUE`. An opcode makes at
most one object, and the length of every text and number is known before it is made.
"""

import struct
from collections.abc import Callable
from typing import Any

from analyzers import limits
from analyzers.checkpoints.pickles.faults import Damaged, Excess, Refused, refuse_global
from analyzers.checkpoints.pickles.objects import GLOBALS, OPAQUE, Constructor, Entries, Storage, StorageType, Stored
from analyzers.checkpoints.reference import quoted

_STOP, _INT1, _PUT1, _PUT4, _GET1, _MARK, _TUPLE, _TUPLE2 = b".Kqrh(t\x86"
_AHEAD = 8  # bytes to have beyond an opcode, more than those numbers take
_PICKLE_PROTOCOLS = 5
# Longer whole numbers are no lengths, and longer texts no names: they are passed over unread.
_WHOLE_BYTES, _TEXT_BYTES = 16, 4 * limits.TENSOR_NAME_LENGTH

_INT16, _INT32, _UINT32, _UINT64, _DOUBLE = (struct.Struct(code).unpack_from for code in ("<H", "<i", "<I", "<Q", ">d"))


class Machine:
    """Decodes the pickle at ``at`` in ``data``; afterwards ``at`` is the byte behind it, and ``storages`` are those it named.

    more: given how many bytes are needed, returns ``data`` with at least so many where there are; None where it is complete.
    opcodes: the most to be executed.
    """

    def __init__(self, data: bytes, at: int = 0, more: Callable[[int], bytes] | None = None, opcodes: int = limits.PICKLE_OPCODES) -> None:
        self.data = data
        self.at = at
        self._more = more
        self._opcodes = opcodes
        self._made = 0
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks below each mark
        self._memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}

    def run(self) -> Any:
        """What the pickle describes. Raises Damaged, Refused, Excess."""
        steps = [getattr(self, f"_{name}") if name else self._unknown for name in _STEPS]
        memo, growing = self._memo, self._more
        data, at, stack = self.data, self.at, self._stack
        try:
            for _ in range(self._opcodes):
                if growing and at + _AHEAD > len(data):
                    data = self.data = growing(at + _AHEAD)
                code = data[at]
                at += 1
                # Five of six opcodes of a state dict are these; each of the others is a method.
                if code == _INT1:
                    stack.append(data[at])
                    at += 1
                elif code == _PUT4:
                    memo[_UINT32(data, at)[0]] = stack[-1]
                    at += 4
                elif code == _GET1:
                    stack.append(memo[data[at]])
                    at += 1
                elif code == _MARK:
                    stack = self._mark()
                elif code == _TUPLE:
                    items, stack = tuple(stack), self._unmark()
                    stack.append(items)
                elif code == _TUPLE2:
                    last = stack.pop()
                    stack[-1] = (stack[-1], last)
                elif code == _PUT1:
                    memo[data[at]] = stack[-1]
                    at += 1
                elif code == _STOP:
                    self.at = at
                    return stack.pop()
                else:
                    self.at = at
                    steps[code]()
                    data, at, stack = self.data, self.at, self._stack
        except (IndexError, struct.error):
            raise Damaged("its pickle is cut off, or takes more from its stack than there is") from None
        except KeyError:
            raise Damaged("its pickle remembers what it never saw") from None
        raise Excess(f"has a pickle of more than {self._opcodes:,} opcodes (MANTISSA_PICKLE_OPCODES).")

    def _fetch(self, count: int) -> None:
        """Have ``count`` more bytes at ``at``."""
        if self.at + count > len(self.data):
            if self._more is not None:
                self.data = self._more(self.at + count)
            if self.at + count > len(self.data):
                raise Damaged("its pickle is cut off")

    def _take(self, count: int) -> bytes:
        self._fetch(count)
        self.at += count
        return self.data[self.at - count : self.at]

    def _line(self) -> str:
        """The text up to the next line feed."""
        while (end := self.data.find(b"\n", self.at, self.at + _TEXT_BYTES)) < 0:
            if len(self.data) - self.at >= _TEXT_BYTES:
                raise Damaged("its pickle has a line that does not end")
            self._fetch(len(self.data) - self.at + 1)
        raw, self.at = self.data[self.at : end], end + 1
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise Damaged("its pickle has a line that is no text") from None

    def _mark(self) -> list[Any]:
        """A new stack, above a mark."""
        if len(self._below) >= limits.PICKLE_DEPTH:
            raise Excess(f"has a pickle nested deeper than {limits.PICKLE_DEPTH:,} levels (MANTISSA_PICKLE_DEPTH).")
        self._below.append(self._stack)
        self._stack = []
        return self._stack

    def _unmark(self) -> list[Any]:
        """The stack below the last mark, which becomes the stack again."""
        self._stack = self._below.pop()
        return self._stack

    def _pop_mark(self) -> list[Any]:
        """Everything above the last mark."""
        items = self._stack
        self._unmark()
        return items

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _unknown(self) -> None:
        raise Damaged(f"its pickle has an opcode that no state dict needs, {self.data[self.at - 1]}")

    # Around the values.

    def _protocol(self) -> None:
        if self._take(1)[0] > _PICKLE_PROTOCOLS:
            raise Damaged("its pickle is of an unknown protocol")

    def _frame(self) -> None:
        self._take(8)  # how much to read ahead, which everything read is checked without

    def _pop(self) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._unmark()

    def _dup(self) -> None:
        self._push(self._stack[-1])

    # The memo.

    def _put_line(self) -> None:
        self._remember(self._index())

    def _memoize(self) -> None:
        self._remember(len(self._memo))

    def _remember(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _get_line(self) -> None:
        self._push(self._memo[self._index()])

    def _get4(self) -> None:
        self._push(self._memo[_UINT32(self._take(4))[0]])

    def _index(self) -> int:
        line = self._line()
        if not line.isascii() or not line.isdigit() or len(line) > 10:
            raise Damaged("its pickle has a place in its memory that is no number")
        return int(line)

    # Plain values.

    def _none(self) -> None:
        self._push(None)

    def _true(self) -> None:
        self._push(True)

    def _false(self) -> None:
        self._push(False)

    def _int_line(self) -> None:
        line = self._line().removesuffix("L")
        if line in ("00", "01"):  # how protocols 0 and 1 write truth values
            self._push(line == "01")
            return
        digits = line.removeprefix("-")
        if not digits.isascii() or not digits.isdigit():
            raise Damaged("its pickle has a whole number that is none")
        self._push(int(line) if len(line) <= 2 * _WHOLE_BYTES else OPAQUE)

    def _int2(self) -> None:
        self._push(_INT16(self._take(2))[0])

    def _int4(self) -> None:
        self._push(_INT32(self._take(4))[0])

    def _long1(self) -> None:
        self._long(self._take(1)[0])

    def _long4(self) -> None:
        self._long(_UINT32(self._take(4))[0])

    def _long(self, count: int) -> None:
        if count > _WHOLE_BYTES:
            self._pass_over(count)
        else:
            self._push(int.from_bytes(self._take(count), "little", signed=True))

    def _float_line(self) -> None:
        self._line()
        self._push(OPAQUE)

    def _float(self) -> None:
        self._take(8)
        self._push(OPAQUE)  # no tensor depends on one

    def _pass_over(self, count: int) -> None:
        self._fetch(count)
        self.at += count
        self._push(OPAQUE)

    def _text1(self) -> None:
        self._text(self._take(1)[0])

    def _text4(self) -> None:
        self._text(_UINT32(self._take(4))[0])

    def _text8(self) -> None:
        self._text(_UINT64(self._take(8))[0])

    def _text(self, count: int) -> None:
        if count > _TEXT_BYTES:
            self._pass_over(count)
            return
        raw = self._take(count)
        try:
            self._push(raw.decode())
        except UnicodeDecodeError:
            self._push(OPAQUE)

    def _bytes1(self) -> None:
        self._pass_over(self._take(1)[0])

    def _bytes4(self) -> None:
        self._pass_over(_UINT32(self._take(4))[0])

    def _bytes8(self) -> None:
        self._pass_over(_UINT64(self._take(8))[0])

    def _text_line(self) -> None:
        line = self._line()
        self._push(line if line.isascii() and "\\" not in line else OPAQUE)

    def _quoted_line(self) -> None:
        line = self._line()
        if len(line) < 2 or line[0] != line[-1] or line[0] not in "'\"":
            raise Damaged("its pickle has a text without quotes")
        self._push(line[1:-1] if "\\" not in line else OPAQUE)

    # Containers.

    def _tuple0(self) -> None:
        self._push(())

    def _tuple1(self) -> None:
        self._stack[-1] = (self._stack[-1],)

    def _tuple3(self) -> None:
        self._stack[-3:] = [(self._stack[-3], self._stack[-2], self._stack[-1])]

    def _list0(self) -> None:
        self._push([])

    def _list(self) -> None:
        self._push(self._pop_mark())

    def _append(self) -> None:
        value = self._stack.pop()
        self._extend([value])

    def _appends(self) -> None:
        self._extend(self._pop_mark())

    def _extend(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise Damaged("its pickle appends to what is no list")
        target.extend(values)

    def _dict0(self) -> None:
        self._push(Entries())

    def _dict(self) -> None:
        self._push(Entries(_pairs(self._pop_mark())))

    def _set_item(self) -> None:
        value = self._stack.pop()
        self._set([self._stack.pop(), value])

    def _set_items(self) -> None:
        self._set(_pairs(self._pop_mark()))

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not Entries:
            raise Damaged("its pickle sets an item of what is no mapping")
        target.extend(items)

    def _set0(self) -> None:
        self._push(OPAQUE)

    def _add_items(self) -> None:
        self._pop_mark()
        if self._stack[-1] is not OPAQUE:
            raise Damaged("its pickle adds to what is no set")

    def _frozen_set(self) -> None:
        self._pop_mark()
        self._push(OPAQUE)

    # What names something outside of the pickle.

    def _global(self) -> None:
        module = self._line()
        self._known(module, self._line())

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if type(name) is not str or type(module) is not str:
            raise Damaged("its pickle names something by what is no text")
        self._known(module, name)

    def _known(self, module: str, name: str) -> None:
        found = GLOBALS.get((module, name))
        if found is None:
            refuse_global(module, name)
        self._push(found)

    def _instance(self) -> None:
        module = self._line()
        refuse_global(module, self._line())

    def _extension(self) -> None:
        raise Refused("asks for an object by its number in Python's extension registry, and was not loaded: no state dict does.")

    def _object(self) -> None:
        raise Refused("builds objects in a way no state dict does, and was not loaded: save the state_dict of the model alone.")

    def _reduce(self) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if type(function) is not Constructor:
            raise Damaged("its pickle calls what cannot be called")
        if type(arguments) is not tuple:
            raise Damaged("its pickle calls with something else than arguments")
        made = function.make(arguments)
        # Arguments can be used again: what is made of them is counted, or a few would be copied without end.
        self._made += len(made.shape) if type(made) is Stored else len(made) if type(made) in (tuple, Entries) else 1
        if self._made > self._opcodes:
            raise Excess(f"has a pickle that makes more than {self._opcodes:,} values of others (MANTISSA_PICKLE_OPCODES).")
        self._push(made)

    def _build(self) -> None:
        self._stack.pop()  # attributes, such as the versions of modules that a state dict carries
        target = self._stack[-1]
        if type(target) is not Entries and target is not OPAQUE:
            raise Damaged("its pickle sets attributes of what has none")

    def _persistent_line(self) -> None:
        raise Damaged("its pickle names a storage by a text (protocol 0), which torch does not read either")

    def _persistent(self) -> None:
        storage = _storage(self._stack.pop())
        known = self.storages.setdefault(storage.key, storage)
        if known.whole * known.dtype.itemsize != storage.whole * storage.dtype.itemsize:
            raise Damaged(f"the storage {quoted(storage.key)} has two lengths")
        self._push(storage)


def _pairs(items: list[Any]) -> list[Any]:
    if len(items) % 2:
        raise Damaged("its pickle has a key without a value")
    return items


def _storage(identity: Any) -> Storage:
    """A storage from its persistent id: "storage", its class, key, device, length, in old files also a view into it."""
    if type(identity) is not tuple or not identity or type(identity[0]) is not str:
        raise Damaged("its pickle names a storage in an unknown way")
    if identity[0] == "module":
        raise Refused("is a whole model, pickled with its classes, and was not loaded: save its state_dict, best as safetensors.")
    if identity[0] != "storage" or len(identity) not in (5, 6):
        raise Damaged(f"its pickle names {quoted(identity[0])} where a storage should be")
    kind, key, _, numel = identity[1:5]
    if type(kind) is not StorageType or type(key) is not str or not _is_count(numel):
        raise Damaged("its pickle describes a storage with something else than its type, key and length")
    view = identity[5] if len(identity) == 6 else None
    if view is None:
        return Storage(key, kind.dtype, 0, numel, numel)
    if type(view) is not tuple or len(view) != 3 or not _is_count(view[1]) or not _is_count(view[2]) or view[1] + view[2] > numel:
        raise Damaged("its pickle describes a view that is not within its storage")
    return Storage(key, kind.dtype, view[1], view[2], numel)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


# The opcodes, by their byte. All others, out-of-band buffers among them, are in no file of torch.save.
_CODES = {
    b"\x80": "protocol", b"\x95": "frame", b"0": "pop", b"1": "pop_mark", b"2": "dup",
    b"p": "put_line", b"\x94": "memoize", b"g": "get_line", b"j": "get4",
    b"N": "none", b"\x88": "true", b"\x89": "false",
    b"I": "int_line", b"L": "int_line", b"M": "int2", b"J": "int4", b"\x8a": "long1", b"\x8b": "long4",
    b"F": "float_line", b"G": "float",
    b"U": "text1", b"T": "text4", b"\x8c": "text1", b"X": "text4", b"\x8d": "text8", b"V": "text_line", b"S": "quoted_line",
    b"C": "bytes1", b"B": "bytes4", b"\x8e": "bytes8", b"\x96": "bytes8",
    b")": "tuple0", b"\x85": "tuple1", b"\x87": "tuple3",
    b"]": "list0", b"l": "list", b"a": "append", b"e": "appends",
    b"}": "dict0", b"d": "dict", b"s": "set_item", b"u": "set_items",
    b"\x8f": "set0", b"\x90": "add_items", b"\x91": "frozen_set",
    b"c": "global", b"\x93": "stack_global", b"i": "instance", b"o": "object", b"\x81": "reduce", b"\x92": "object",
    b"\x82": "extension", b"\x83": "extension", b"\x84": "extension",
    b"R": "reduce", b"b": "build", b"P": "persistent_line", b"Q": "persistent",
}  # fmt: skip
_STEPS = [_CODES.get(bytes([code]), "") for code in range(256)]
