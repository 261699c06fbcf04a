"""Hostile pickled checkpoints, each with the reason it must be refused.

The reader calls nothing that a pickle names, so it reads sound tensors next to a call, and must name the calls in `Attack.opaque`.
Payloads write the file ``CANARY`` in the current folder: Python's own unpickler shows that they work, the reader does not execute them.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CANARY = "canary.txt"
_COMMAND = f"echo run > {CANARY}"
_SOURCE = f"open({CANARY!r}, 'w').write('run')"


@dataclass(frozen=True)
class Attack:
    """A hostile file and the reason why it must be refused. opaque: names that it calls in vain, if its one tensor, four zeros named
    "weight", is read; names: those of its tensors, if only their keys are strange and they are read.
    """

    name: str
    reason: str
    data: bytes
    opaque: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def text(value: str) -> bytes:
    """Push a text."""
    raw = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value: int) -> bytes:
    """Push an integer."""
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def named(module: str, name: str) -> bytes:
    """Push a global of a module by name."""
    return b"c" + f"{module}\n{name}\n".encode()


def called(function: bytes, *arguments: bytes) -> bytes:
    """Push the result of calling ``function``."""
    return function + b"(" + b"".join(arguments) + b"tR"


def stored(
    numel: bytes = number(4), *, offset: bytes = number(0), shape: bytes = b"(K\x04t", strides: bytes = b"(K\x01t", key: bytes = text("0"),
    kind: bytes = named("torch", "FloatStorage"), word: bytes = text("storage"),
) -> bytes:  # fmt: skip
    """Push a tensor, by default a valid one of four numbers."""
    storage = b"(" + word + kind + key + text("cpu") + numel + b"tQ"
    hooks = called(named("collections", "OrderedDict"))
    return called(named("torch._utils", "_rebuild_tensor_v2"), storage, offset, shape, strides, b"\x89", hooks)


def mapping(**values: bytes) -> bytes:
    """Push a mapping from names to values."""
    return b"}(" + b"".join(text(name) + value for name, value in values.items()) + b"u"


def pickled(value: bytes) -> bytes:
    """Make a pickle of protocol 2."""
    return b"\x80\x02" + value + b"."


@dataclass(frozen=True)
class Entry:
    """An entry of an archive. Fields that are not None replace the true values in its local header and in the directory."""

    name: str
    data: bytes
    local_name: str | None = None
    size: int | None = None
    packed: int | None = None
    offset: int | None = None
    method: int = 0
    flags: int = 0
    extra: bytes = b""


def archive(
    entries: Iterable[Entry], *, count: int | None = None, start: int | None = None, prefix: bytes = b"", wide: bytes = b"",
) -> bytes:  # fmt: skip
    """Make a zip archive. count, start: false values in the end of the directory; wide: bytes before that end."""
    body, directory, number_of = bytearray(prefix), bytearray(), 0
    for entry in entries:
        name = (entry.local_name or entry.name).encode()
        offset = len(body) if entry.offset is None else entry.offset
        size = len(entry.data) if entry.size is None else entry.size
        packed = size if entry.packed is None else entry.packed
        local = len(entry.data)
        body += struct.pack("<4s5H3I2H", b"PK\3\4", 0, entry.flags, entry.method, 0, 0, 0, local, local, len(name), 0)
        body += name + entry.data
        raw = entry.name.encode()
        directory += struct.pack(
            "<4s6H3I5H2I", b"PK\1\2", 0, 0, entry.flags, entry.method, 0, 0, 0, packed, size, len(raw), len(entry.extra), 0, 0, 0, 0, offset
        )
        directory += raw + entry.extra
        number_of += 1
    begin = len(body) if start is None else start
    count = number_of if count is None else count
    return bytes(body + directory + wide) + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(directory), begin, 0)


def parts(value: bytes, storages: Sequence[bytes] = (bytes(16),), version: bytes = b"3\n") -> list[Entry]:
    """Make the entries of a PyTorch file with this pickle."""
    data = [Entry(f"archive/data/{key}", storage) for key, storage in enumerate(storages)]
    return [Entry("archive/data.pkl", value), Entry("archive/byteorder", b"little"), *data, Entry("archive/version", version)]


def zipped(value: bytes, storages: Sequence[bytes] = (bytes(16),)) -> bytes:
    """Make a PyTorch file with this pickle, as an archive."""
    return archive(parts(value, storages))


SOUND = pickled(mapping(weight=stored()))
_MAGIC = pickled(number(0x1950A86A20F9469CFC6C)) + pickled(number(1001))
_SYSTEM_OF = pickled(mapping(little_endian=b"\x88"))


def old(value: bytes, keys: bytes = b"](" + text("0") + b"e", data: bytes = struct.pack("<q", 4) + bytes(16)) -> bytes:
    """Make a PyTorch file with this pickle, in the layout before torch 1.6."""
    return _MAGIC + _SYSTEM_OF + value + pickled(keys) + data


# Well-known gadgets, one of each kind, and names that continue or resemble allowed ones.
GADGETS = [
    ("os", "system"), ("posix", "system"), ("subprocess", "Popen"), ("builtins", "eval"), ("builtins", "getattr"), ("__builtin__", "eval"),
    ("runpy", "_run_code"), ("pickle", "loads"), ("marshal", "loads"), ("torch", "load"), ("torch.storage", "_load_from_bytes"),
    ("torch._utils", "_import_dotted_name"), ("torch", "FloatTensor"), ("numpy.core.multiarray", "_reconstruct"), ("functools", "partial"),
    ("operator", "attrgetter"), ("copyreg", "_reconstructor"), ("importlib", "import_module"), ("ctypes", "CDLL"), ("sys", "exit"),
    ("torch._utils", "_rebuild_tensor_v2.__globals__"), ("torch", "_utils._rebuild_tensor_v2"), ("torch._utils", "os.system"),
    ("collections", "OrderedDict.__reduce_ex__"), ("collections.OrderedDict", "__init__"), ("builtins", "set.__class__"), ("torch", ""),
    ("", ""), ("torch ", "Size"), ("torch", "Size "), ("\u043es", "system"), ("os\x00", "system"), ("x" * 4000, "y" * 4000),
]  # fmt: skip

_SYSTEM = named("os", "system")
_ARGUMENT = text(_COMMAND)
_LIVE = {
    "reduce": called(_SYSTEM, _ARGUMENT) + b"0",
    "stack_global": called(text("os") + text("system") + b"\x93", _ARGUMENT) + b"0",
    "inst": b"(" + _ARGUMENT + b"ios\nsystem\n0",
    "obj": b"(" + _SYSTEM + _ARGUMENT + b"o0",
    "getattr_chain": called(
        called(named("builtins", "getattr"), called(named("builtins", "__import__"), text("os")), text("system")), _ARGUMENT
    )
    + b"0",
    "pickle_in_pickle": called(named("_pickle", "loads"), b"C" + bytes([len(_COMMAND) + 22]) + pickled(called(_SYSTEM, _ARGUMENT))) + b"0",
    "partial": called(called(named("functools", "partial"), _SYSTEM, _ARGUMENT)) + b"0",
    "runpy": called(named("runpy", "_run_code"), called(named("builtins", "compile"), text(_SOURCE), text(""), text("exec")), b"}") + b"0",
}

# Names that each live payload calls.
_NAMED = {
    **dict.fromkeys(("reduce", "stack_global"), ("os.system",)),
    "getattr_chain": ("builtins.__import__", "builtins.getattr"),
    "pickle_in_pickle": ("_pickle.loads",),
    "partial": ("functools.partial",),
    "runpy": ("builtins.compile", "runpy._run_code"),
}

_FORMS = {
    "newobj": named("os", "_wrap_close") + b")\x81",
    "build_global": _SYSTEM + b"}b",
    "build_tensor": stored() + mapping(__class__=b"N") + b"b",
    "extension_1": b"\x82\x01",
    "persistent_text": b"P('storage', 'os.system')\n",
    "persistent_word": stored(word=text("file")),
    "persistent_short": b"(" + text("storage") + b"tQ",
    "unknown_opcode": b"\xff",
    "later_protocol": b"\x80\x06N",
    "call_dtype": called(named("torch", "float32")),
    "call_text": called(text("os.system"), _ARGUMENT),
    "call_without_tuple": named("collections", "OrderedDict") + b"]R",
    "global_by_number": b"K\x01K\x02\x93",
    "type_v2_of_nothing": called(named("torch._tensor", "_rebuild_from_type_v2"), _SYSTEM, named("torch", "Tensor"), b")", b"}"),
    "type_v2_of_itself": called(named("torch._tensor", "_rebuild_from_type_v2"), named("torch._tensor", "_rebuild_from_type_v2"),
                                named("torch", "Tensor"), b")", b"}"),
    "qtensor": called(named("torch._utils", "_rebuild_qtensor")),
    "conjugated": stored()[:-2] + mapping(conj=b"\x88") + b"tR",
    "ordered_dict_of_texts": called(named("collections", "OrderedDict"), b"](" + text("ab") + b"e"),
}  # fmt: skip

_NET = named("net", "Net")
_STORAGE = b"(" + text("storage") + named("torch", "FloatStorage") + text("0") + text("cpu") + number(4) + b"tQ"

# Tensors inside unknown objects.
_OBJECTS = {
    "unknown_tensor": called(named("net", "_rebuild"), _STORAGE, number(0), b"(K\x04t", b"(K\x01t"),
    "unknown_storage": called(named("torch._utils", "_rebuild_tensor_v2"), called(named("torch.storage", "_load_from_bytes"), b"N"),
                              number(0), b"(K\x04t", b"(K\x01t", b"\x89", b"}"),
    "dtensor": called(named("torch._tensor", "_rebuild_from_type_v2"), named("torch._utils", "_rebuild_wrapper_subclass"),
                      named("torch.distributed.tensor", "DTensor"), b")", b"}"),
    "tensor_as_argument": called(_NET, stored()),
    "tensor_as_attribute": _NET + b")\x81" + mapping(weight=stored()) + b"b",
    "copied_set": b"](" + b"N" * 100_000 + b"eq\x000" + called(named("builtins", "set"), b"h\x00") * 2_000,
    "call_of_an_object": called(called(_NET), _ARGUMENT),
}  # fmt: skip

# False descriptions of storages and tensors.
_TENSORS = {
    "beyond_storage": stored(shape=b"(K\x05t"),
    "offset_beyond_storage": stored(offset=number(1)),
    "offset_negative": stored(offset=number(-1)),
    "stride_beyond_storage": stored(shape=b"(K\x02t", strides=b"(K\x04t"),
    "shape_negative": stored(shape=b"(" + number(-4) + b"t"),
    "shape_overflow": stored(shape=b"(" + number(1 << 32) + number(1 << 32) + b"t", strides=b"(K\x00K\x00t"),
    "shape_true": stored(shape=b"(\x88t"),
    "shape_huge": stored(shape=b"(L" + b"9" * 5000 + b"L\nt"),
    "shape_of_its_own": stored(shape=text("4")),
    "shape_long": stored(shape=b"(" + b"K\x01" * 300 + b"t", strides=b"(" + b"K\x01" * 300 + b"t"),
    "numel_huge": stored(number(1 << 100)),
    "numel_more_than_entry": stored(number(5)),
    "numel_less_than_entry": stored(number(3), shape=b"(K\x03t"),
    "two_lengths": b"(" + stored() + stored(number(8)) + b"t",
    "key_missing": stored(key=text("1")),
    "key_path": stored(key=text("../data.pkl")),
    "storage_of_no_type": stored(kind=text("FloatStorage")),
    "storage_class_a_tensor": stored(kind=named("torch", "Tensor")),
    "expanded_without_end": stored(shape=b"(" + number(1 << 40) + b"t", strides=b"(K\x00t"),
}  # fmt: skip

_STREAMS = {
    "nothing": b"",
    "pop_of_nothing": b"0.",
    "append_to_nothing": b"Na.",
    "item_of_list": b"]" + text("a") + b"Ns.",
    "odd_items": b"}(" + text("a") + b"u.",
    "memo_never_seen": b"h\x07.",
    "memo_negative": b"Np-1\n.",
    "memo_by_digits": b"Np" + b"9" * 5000 + b"\n.",
    "text_of_2_63": b"\x8d" + struct.pack("<Q", 1 << 63) + b"a.",
    "text_of_4_gb": b"X\xff\xff\xff\xffa.",
    "byte_array_of_2_62": b"\x96" + struct.pack("<Q", 1 << 62) + b".",
    "long4_of_2_gb": b"\x8b\xff\xff\xff\x7f\x01.",
    "number_of_a_million_digits": b"}(" + text("a") + b"I" + b"1" * 1_000_000 + b"\nu.",
    "line_without_end": b"c" + b"o" * 100_000,
    "half_surrogate_as_name": b"}(" + b"X\x03\0\0\0\xed\xa0\x80" + stored() + b"u.",
    "a_tensor": stored() + b".",
    "a_list_of_tensors": b"](" + stored() + b"e.",
    "contains_itself": b"}q\x00(" + text("a") + b"h\x00" + text("b") + stored() + b"u.",
    "list_contains_itself": b"}(" + text("a") + b"]q\x00(h\x00" + stored() + b"eu.",
    "name_list": b"}(](K\x01e" + stored() + b"u.",
    "name_none": b"}(N" + stored() + b"u.",
    "name_of_many_digits": b"}(\x8b" + struct.pack("<i", 8_000) + b"\x7f" * 8_000 + stored() + b"u.",
    "name_float": b"}(G\0\0\0\0\0\0\0\0" + stored() + b"u.",
    "same_name_twice": mapping(**{"a.b": stored(), "a": mapping(b=stored())}) + b".",
    "long_name": mapping(**{"a" * 5000: stored()}) + b".",
    "deep_mappings": b"".join(b"}" + text("a") for _ in range(1_500)) + stored() + b"s" * 1_500 + b".",
    # nested mappings with two names for the next one: 2^40 tensors
    "doubled_mappings": stored() + b"q\x000" + b"".join(
        b"}(" + text("a") + b"h\x00" + text("b") + b"h\x00uq\x000" for _ in range(40)) + b"h\x00.",
    # nested lists that repeat the next one
    "doubled_lists": stored() + b"q\x000" + b"".join(b"](" + b"h\x00" * 10 + b"eq\x000" for _ in range(40)) + mapping(a=b"h\x00") + b".",
    "copied_mapping": b"](" + b"NN\x86" * 100_000 + b"eq\x000" + called(named("collections", "OrderedDict"), b"h\x00") * 2_000 + b".",
    "copied_size": b"(" + b"N" * 100_000 + b"tq\x000" + called(named("torch", "Size"), b"h\x00") * 2_000 + b".",
}  # fmt: skip

# Names under which valid tensors with strange keys are read.
_READ = {
    "half_surrogate_as_name": ("?",),
    "a_tensor": ("tensor",),
    "a_list_of_tensors": ("0",),
    "name_list": ("?",),
    "name_none": ("None",),
    "name_of_many_digits": ("?",),
    "name_float": ("0.0",),
}

# Pickles that are harmful only by their size: each opcode makes an object, ``FLOOD`` of them at most.
FLOOD = 100_000
FLOODS = {
    "lists": b"(" + b"]" * FLOOD + b"t.",
    "mappings": b"(" + b"}" * FLOOD + b"t.",
    "memos": b"N" + b"\x94" * FLOOD + b".",
    "copies": b"Nq\x00(" + b"h\x00" * FLOOD + b"t.",
    "nested_tuples": b")" + b"\x85" * FLOOD + b".",
    "numbers": b"(" + b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f" * FLOOD + b"t.",
    "texts": b"(" + b"\x8c\x01a" * FLOOD + b"t.",
    "long_texts": b"(" + (b"X\x00\x01\x00\x00" + b"a" * 256) * (FLOOD // 7) + b"t.",
    "objects": named("net", "Net") + b"q\x000(" + b"h\x00)\x81" * (FLOOD // 3) + b"t.",
    "classes": b"(" + b"cnet\nNet\n" * FLOOD + b"t.",
    "sets": b"(" + b"\x8f" * FLOOD + b"t.",
    "nested_lists": b"}" + text("a") + b"]" * (FLOOD // 5) + b"a" * (FLOOD // 5 - 1) + b"s.",
}


# The code of a TorchScript program, which may be compressed.
_CODE = [Entry("archive/constants.pkl", b"N."), Entry("archive/code/y.py", b"\3\0", size=0, packed=2, method=8)]


def _zip_tricks() -> dict[str, bytes]:
    whole = parts(SOUND)
    pickle, order, data, version = whole
    wide_start = len(archive(whole)) - 22
    wide_length = sum(46 + len(entry.name) for entry in whole)

    def end64(count: int = 4, length: int = wide_length, place: int = wide_start) -> bytes:
        record = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 4, count, length, wide_start - wide_length)
        return record + struct.pack("<4sIQI", b"PK\6\7", 0, place, 1)

    bomb = zlib.compressobj(wbits=-15)
    squeezed = bomb.compress(bytes(50_000_000)) + bomb.flush()
    return {
        "truncated": archive(whole)[:-1],
        "appended": archive(whole) + b"x",
        "polyglot": archive(whole, prefix=b"PK\3\4" + bytes(60)),
        "count_lying": archive(whole, count=0xFFFE),
        "directory_elsewhere": archive(whole, start=0),
        "no_entries": archive([]),
        "same_name_twice": archive([*whole, pickle]),
        "same_data_twice": archive([pickle, order, data, Entry("archive/data/1", b"", offset=0), version]),
        "outside": archive([pickle, order, Entry("archive/data/0", bytes(16), offset=1 << 31), version]),
        "into_directory": archive([pickle, order, Entry("archive/data/0", bytes(16), offset=wide_start - wide_length + 1), version]),
        "local_name_differs": archive([pickle, order, Entry("archive/data/0", bytes(16), local_name="archive/data/9"), version]),
        "bomb": archive([pickle, order, Entry("archive/data/0", squeezed, size=50_000_000, packed=len(squeezed), method=8), version]),
        "bomb_claimed_stored": archive([pickle, order, Entry("archive/data/0", squeezed, size=50_000_000, packed=len(squeezed)), version]),
        "method_99": archive([pickle, order, Entry("archive/data/0", bytes(16), method=99), version]),
        "encrypted": archive([pickle, order, Entry("archive/data/0", bytes(16), flags=1), version]),
        "descriptor_missing": archive([pickle, order, Entry("archive/data/0", bytes(16), flags=8), version]),
        "wide_lengths_lying": archive(
            [pickle, order, Entry("archive/data/0", bytes(16), size=0xFFFFFFFF, packed=0xFFFFFFFF,
                                  extra=struct.pack("<2H2Q", 1, 16, 1 << 62, 1 << 62)), version]),
        "wide_end_elsewhere": archive(whole, wide=end64(place=3)),
        "wide_end_lying_count": archive(whole, wide=end64(count=1 << 60)),
        "wide_end_lying_length": archive(whole, wide=end64(length=1 << 62)),
        "name_upwards": archive([*whole[:3], Entry("archive/../../x", b""), version]),
        "no_pickle": archive(whole[1:]),
        "version_digits": archive(parts(SOUND, version=b"3" * 5000)),
        "big_endian": archive([pickle, Entry("archive/byteorder", b"big"), data, version]),
        "storage_missing": archive([pickle, order, version]),
        "script_object_in_itself": archive([*parts(pickled(
            named("__torch__", "Net") + b")\x81q\x00" + mapping(a=b"h\x00", w=stored()) + b"b")), *_CODE]),
        "script_frozen": archive(
            [*parts(pickled(named("__torch__", "Net") + b")\x81}b"), ()), *_CODE, Entry("archive/constants/0", bytes(4))]),
        "word_document": archive([Entry("[Content_Types].xml", b""), Entry("word/document.xml", b"")]),
    }  # fmt: skip


_OTHER_FILES = {
    "empty": b"",
    "zeros": bytes(1000),
    "git_lfs_pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n",
    "web_page": b"<!doctype html><title>404</title>",
    "safetensors": (2).to_bytes(8, "little") + b"{}" + bytes(100),
    "plain_pickle": pickled(mapping(a=number(1))),
    "zip_magic_alone": b"PK\3\4",
    "zip_end_alone": b"PK\5\6" + bytes(18),
}


_OLD_FILES = {
    "magic_only": _MAGIC[:15],
    "magic_wrong": pickled(number(7)) + old(SOUND),
    "protocol_list": _MAGIC[: -len(pickled(number(1001)))] + pickled(b"]"),
    "no_storages": _MAGIC + _SYSTEM_OF,
    "big_endian": old(SOUND).replace(text("little_endian") + b"\x88", text("little_endian") + b"\x89"),
    "system_list": _MAGIC + pickled(b"]") + SOUND,
    "truncated_data": old(SOUND)[:-1],
    "length_differs": old(SOUND, data=struct.pack("<q", 3) + bytes(16)),
    "length_negative": old(SOUND, data=struct.pack("<q", -4) + bytes(16)),
    "keys_missing": old(SOUND, keys=b"]"),
    "keys_twice": old(SOUND, keys=b"](" + text("0") + text("0") + b"e"),
    "keys_numbers": old(SOUND, keys=b"](K\x00e"),
    "keys_a_text": old(SOUND, keys=text("0")),
    "numel_huge": old(pickled(mapping(weight=stored(number(1 << 61))))),
    "runs_in_keys": old(SOUND, keys=_LIVE["reduce"] + b"]"),
    "runs_in_system": _MAGIC + pickled(_LIVE["reduce"] + b"}"),
    "runs_in_magic": pickled(_LIVE["reduce"] + b"N") + old(SOUND),
}


def _all() -> list[Attack]:
    found = [
        Attack(f"live_{name}", "runs a command when unpickled", zipped(pickled(code + mapping(weight=stored()))), _NAMED.get(name, ()))
        for name, code in _LIVE.items()
    ]
    for module, name in GADGETS:
        call = called(named(module, name), _ARGUMENT)
        found.append(Attack(f"global {f'{module[:40]}.{name[:40]}'!a}", "is not part of a state dict", zipped(pickled(call))))
    for reason, codes in (
        ("a form of building that no state dict needs", _FORMS),
        ("tensors inside something unknown", _OBJECTS),
        ("a tensor that contradicts itself", _TENSORS),
    ):
        found += [Attack(name, reason, zipped(pickled(mapping(a=code)))) for name, code in codes.items()]
    found += [Attack(f"stream_{name}", "a pickle that is none", zipped(code), names=_READ.get(name, ())) for name, code in _STREAMS.items()]
    found += [Attack(f"old_{name}", "an old file that contradicts itself", data) for name, data in _OLD_FILES.items()]
    found += [Attack(f"zip_{name}", "an archive that contradicts itself", data) for name, data in _zip_tricks().items()]
    return found + [Attack(f"file_{name}", "no file of torch.save", data) for name, data in _OTHER_FILES.items()]


ATTACKS = _all()
