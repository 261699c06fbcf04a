"""Interprets pickles without running anything: opcodes act on a stack, and names become plain descriptions (`objects`).

The standard library decodes the opcodes of protocols 0 to 5. They produce numbers, strings, bytes, tuples, lists, mappings (as `Pairs`)
and what `MAKERS` describe. A call of any other class or function becomes an `Opaque` value, which only has a name. An opcode creates at
most one object, and the length of every string and number is known before it is created.
"""

from collections import Counter
from collections.abc import Callable
from pickletools import genops
from typing import IO, Any, cast

from analyzers.checkpoints.formats.pickles.makers import KNOWN, MAKERS, made_by
from analyzers.checkpoints.formats.pickles.objects import STORAGES, Damaged, Excess, Global, Opaque, Pairs, Storage, Stored
from analyzers.checkpoints.reference import quoted
from analyzers.core import limits
from analyzers.core.terminal import plural

_PICKLE_PROTOCOLS = 5
_LONGEST = 4 * limits.TENSOR_NAME_LENGTH  # longer arguments are neither names nor lengths: they are skipped
_PER_STORAGE = 60  # opcodes; a tensor takes about 35, its entry in an optimizer a few more
_BYTES = 8  # bytes per opcode: vocabularies and lists of floats have this many, malicious pickles 1 to 5
_SPARE, _MOST = 4, 14  # multiples of the opcodes allowed to any pickle, for its bytes and for its storages
_LINES = limits.PICKLE_OPCODES // 6  # most arguments that are lines, which are slow: pickles since protocol 1 have a few for each class


class _Skipped(Exception):
    """The argument of an opcode is too long and was skipped."""


class Stream:
    """A pickle as `pickletools.genops` reads it, from byte ``at`` of ``data``.

    more: returns ``data`` continued to at least a number of bytes, if the file has them; None if ``data`` is complete.
    """

    def __init__(self, data: bytes, at: int = 0, more: Callable[[bytes, int], bytes] | None = None) -> None:
        self.at = at
        self._lines = 0
        self._data = data
        self._more = more

    def read(self, count: int) -> bytes:
        """Return the next ``count`` bytes. Raises Damaged if there are fewer."""
        if self.at + count > len(self._data):
            self._fetch(count)
        start, self.at = self.at, self.at + count
        if count > _LONGEST:
            raise _Skipped
        return self._data[start : self.at]

    def readline(self) -> bytes:
        """Return the bytes up to and including the next line feed."""
        while (end := self._data.find(b"\n", self.at, self.at + _LONGEST)) < 0:
            if len(self._data) - self.at >= _LONGEST:
                raise Damaged("its pickle has a line that does not end")
            self._fetch(len(self._data) - self.at + 1)
        self._lines += 1
        if self._lines > _LINES:
            raise Excess(f"has a pickle of protocol 0 with more than {_LINES:,} arguments.")
        line = self.read(end + 1 - self.at)
        if b"\\" in line:  # `pickletools` warns of unknown escapes, and no name of a tensor or a class has any
            raise _Skipped
        return line

    def _fetch(self, count: int) -> None:
        if self._more is not None:
            self._data = self._more(self._data, self.at + count)
        if self.at + count > len(self._data):
            raise Damaged("its pickle is cut off")


class Machine:
    """Interprets the pickle in ``stream``.

    opcodes: most opcodes allowed, plus those that its bytes and storages account for, so that long pickles of large models are accepted.
    storages: the storages that it names, by key; opaque: how many values each unknown class or function would have created; seen: its
    opcodes; names: its globals; executed: the number of opcodes.
    """

    def __init__(self, stream: Stream, opcodes: int = limits.PICKLE_OPCODES) -> None:
        self.storages: dict[str, Storage] = {}
        self.opaque: Counter[str] = Counter()
        self.seen: set[str] = set()
        self.names: set[str] = set()
        self.executed = 0
        self._stream = stream
        self._opcodes, self._spare, self._most = opcodes, _SPARE * opcodes, _MOST * opcodes
        self._made = 0
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks below each mark
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Return the object that the pickle describes. Raises Damaged, Refused, Excess."""
        while True:
            try:
                for opcode, argument, _ in genops(cast("IO[bytes]", self._stream)):  # calls read and readline only
                    self.executed += 1
                    if self.executed > self._opcodes and self.executed > self._opcodes + min(self._stream.at // _BYTES, self._spare):
                        raise Excess(
                            f"has a pickle of more than {self.executed - 1:,} opcodes for {plural(len(self.storages), 'storage')}."
                        )
                    self.seen.add(opcode.name)
                    step = _STEPS.get(opcode.name)
                    if step is None:
                        raise Damaged(f"its pickle has an opcode that no state dict needs, {opcode.name}")
                    step(self, argument)
                return self._stack.pop()
            except _Skipped:
                self.executed += 1
                self.push(Opaque("?"))
            except IndexError:
                raise Damaged("its pickle pops more than its stack holds") from None
            except KeyError:
                raise Damaged("its pickle refers to an object that it never memoized") from None
            except ValueError:  # raised by genops
                raise Damaged("its pickle has an unknown opcode or an invalid argument") from None

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

    def _protocol(self, version: int) -> None:
        if version > _PICKLE_PROTOCOLS:
            raise Damaged("its pickle is of an unknown protocol")

    def _put(self, index: int | None) -> None:
        self._memo[len(self._memo) if index is None else index] = self._stack[-1]

    def _get(self, index: int) -> None:
        self.push(self._memo[index])

    def _text(self, text: str) -> None:
        self.push(text if text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text) else Opaque("?"))

    def _bytes_text(self, text: str) -> None:
        """Push a string of Python 2, which `pickletools` decodes as Latin-1."""
        raw = text.encode("latin-1")
        try:
            self.push(raw.decode())
        except UnicodeDecodeError:
            self.push(raw)

    def _tuple(self, length: int) -> None:
        items = self._stack[len(self._stack) - length :]
        if len(items) < length:
            raise IndexError
        self._stack[len(self._stack) - length :] = [tuple(items)]

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
            target.entries = target.entries if target.entries is not None else Pairs()
            target = target.entries
        if type(target) is not Pairs:
            raise Damaged("its pickle sets an item of something that is not a mapping")
        target.extend(_pairs(items))

    def _set_item(self, _: None) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def _global(self, argument: str) -> None:
        self._name(*argument.split(" ", 1))

    def _stack_global(self, _: None) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if type(name) is not str or type(module) is not str:
            raise Damaged("its pickle names a global by something that is not text")
        self._name(module, name)

    def _name(self, module: str, name: str) -> None:
        self.names.add(f"{module}.{name}")
        self.push(Global(f"{module}.{name}"))

    def _extension(self, code: int) -> None:
        """Push an object that is named by its number in Python's extension registry."""
        self.opaque[f"copyreg extension {code}"] += 1
        self.push(Global(f"copyreg extension {code}"))

    def _instance(self, argument: str) -> None:
        """Interpret a call of protocol 0: the name of the class, and arguments down to a mark."""
        arguments = tuple(self._pop_mark())
        self._name(*argument.split(" ", 1))
        self._call(self._stack.pop(), arguments)

    def _object(self, _: None) -> None:
        """Interpret a call of protocol 1: the class and arguments down to a mark."""
        function, *arguments = self._pop_mark() or [None]
        self._call(function, tuple(arguments))

    def _new_object(self, _: None) -> None:
        """Interpret a call with named arguments."""
        self._stack.pop()
        self._reduce(None)

    def _reduce(self, _: None) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        self._call(function, arguments)

    def _call(self, function: Any, arguments: Any) -> None:
        """Push the description of a call."""
        if type(function) not in (Global, Opaque):
            raise Damaged("its pickle calls something that is not callable")
        if type(arguments) is not tuple:
            raise Damaged("its pickle calls a function without a tuple of arguments")
        maker = MAKERS.get(function.name) if type(function) is Global else None
        try:
            made = made_by(function, arguments) if maker is None else maker(*arguments)
        except TypeError:  # a maker with other arguments than it takes
            raise Damaged(f"its pickle calls {quoted(function.name)} with other arguments than torch does") from None
        # Results are counted, since arguments can be reused: a short pickle could otherwise copy them without end.
        self._count(len(made.shape) if type(made) is Stored else len(made) if isinstance(made, tuple | list) else 1)
        if type(made) is Opaque:
            if not any(made is each for each in arguments[:1]):  # a parameter is described by its own tensor
                self.opaque[made.name] += 1
        elif (
            len(arguments) > 1 and type(arguments[1]) is Global and arguments[1].name not in KNOWN
        ):  # the class of a tensor that can be read
            self.opaque[arguments[1].name] += 1
        self.push(made)

    def _count(self, values: int) -> None:
        self._made += values
        if self._made > self._opcodes:
            raise Excess(f"has a pickle that builds more than {self._opcodes:,} values from others.")

    def _build(self, _: None) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        if type(target) is Opaque:
            target.state = state
        # Attributes of a mapping, such as the versions of modules in a state dict, are discarded.
        elif type(target) is not Pairs and target is not None:
            raise Damaged("its pickle sets attributes of something that has none")

    def _persistent_text(self, _: str) -> None:
        raise Damaged("its pickle names a storage by a text (protocol 0), which torch does not read either")

    def _persistent(self, _: None) -> None:
        identity = self._stack.pop()
        if type(identity) is tuple and len(identity) == 4 and identity[0] == "module" and type(identity[1]) is Global:
            self.push(identity[1])  # a class of modules, which old files name together with its source code
            return
        storage = _storage(identity)
        if storage.key not in self.storages:
            self._opcodes = min(self._opcodes + _PER_STORAGE, self._most)
        if self.storages.setdefault(storage.key, storage).nbytes != storage.nbytes:
            raise Damaged(f"the storage {quoted(storage.key)} has two lengths")
        self.push(storage)


def _pairs(items: list[Any]) -> Pairs:
    if len(items) % 2:
        raise Damaged("its pickle has a key without a value")
    return Pairs(zip(items[::2], items[1::2], strict=True))


def _storage(identity: Any) -> Storage:
    """Parse a storage's persistent id: "storage", its class, key, device, length, and in old files None in place of a view."""
    if type(identity) is not tuple or len(identity) not in (5, 6) or identity[0] != "storage" or identity[5:] not in ((), (None,)):
        raise Damaged("its pickle names a storage in an unknown way")
    kind, key, _, numel = identity[1:5]
    if type(kind) is not Global or kind.name not in STORAGES or type(key) is not str or type(numel) is not int or not 0 <= numel < 1 << 62:
        raise Damaged("its pickle describes a storage by something other than type, key and length")
    return Storage(key, STORAGES[kind.name], numel)


# The effect of each opcode, by its name in `pickletools`. torch.save writes no others, such as those for out-of-band buffers.
_STEPS: dict[str, Callable[[Machine, Any], object]] = {
    "PROTO": Machine._protocol, "FRAME": lambda m, _: None, "STOP": lambda m, _: None,
    "MARK": Machine._mark, "POP": Machine._pop, "POP_MARK": Machine._pop_mark, "DUP": lambda m, _: m.push(m._stack[-1]),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), Machine._put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), Machine._get),
    "NONE": Machine.push, "NEWTRUE": lambda m, _: m.push(True), "NEWFALSE": lambda m, _: m.push(False),
    **dict.fromkeys(("INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4"), Machine.push),
    **dict.fromkeys(("FLOAT", "BINFLOAT", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"), Machine.push),
    "BYTEARRAY8": lambda m, _: m.push(Opaque("?")),
    **dict.fromkeys(("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "STRING"), Machine._text),
    **dict.fromkeys(("BINSTRING", "SHORT_BINSTRING"), Machine._bytes_text),
    "EMPTY_TUPLE": lambda m, _: m.push(()), "TUPLE": lambda m, _: m.push(tuple(m._pop_mark())),
    "TUPLE1": lambda m, _: m._tuple(1), "TUPLE2": lambda m, _: m._tuple(2), "TUPLE3": lambda m, _: m._tuple(3),
    "EMPTY_LIST": lambda m, _: m.push([]), "LIST": lambda m, _: m.push(m._pop_mark()),
    "APPEND": lambda m, _: m._extend([m._stack.pop()]), "APPENDS": lambda m, _: m._extend(m._pop_mark()),
    "EMPTY_DICT": lambda m, _: m.push(Pairs()), "DICT": lambda m, _: m.push(_pairs(m._pop_mark())),
    "SETITEM": Machine._set_item, "SETITEMS": lambda m, _: m._set(m._pop_mark()),
    "EMPTY_SET": lambda m, _: m.push([]), "ADDITEMS": lambda m, _: m._extend(m._pop_mark()),
    "FROZENSET": lambda m, _: m.push(m._pop_mark()),
    "GLOBAL": Machine._global, "STACK_GLOBAL": Machine._stack_global, "INST": Machine._instance,
    "OBJ": Machine._object, "NEWOBJ": Machine._reduce, "NEWOBJ_EX": Machine._new_object,
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), Machine._extension), "REDUCE": Machine._reduce, "BUILD": Machine._build,
    "PERSID": Machine._persistent_text, "BINPERSID": Machine._persistent,
}  # fmt: skip
