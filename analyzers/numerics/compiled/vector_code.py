"""Writing vector instructions for loops that numba has no words for: LLVM makes of them what the machine has."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from llvmlite import binding, ir
from numba import int64, uint64
from numba import types as _types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic as _untyped
from numba.np import arrayobj as _arrays

from analyzers.numerics.compiled.compiler import jit

INT8, INT16, INT32, INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT32, FLOAT64 = ir.FloatType(), ir.DoubleType()
VECTOR_BYTES = 64
LINE = 64  # bytes that a cache takes in together

# Whether the machine can squeeze elements out of a vector; elsewhere LLVM would branch for each of them.
_FEATURES = set(binding.get_host_cpu_features().flatten().split(","))
SQUEEZES = "+avx512f" in _FEATURES
AVX512 = {"+avx512f", "+avx512bw", "+avx512vbmi2"} <= _FEATURES

# Sums of float64 may be taken in any order, and by fused multiplication; all else stays as IEEE 754 has it.
_ANY_ORDER = ("reassoc", "contract", "nsz")

# What numba does not annotate.
types: Any = _types
cgutils: Any = _cgutils
arrays: Any = _arrays

# A function of typing context and types that returns a signature and what writes the instructions.
intrinsic = cast(Callable[[Any], Any], _untyped)


def word(number: int) -> Any:
    """A constant of 64 bits."""
    return ir.Constant(INT64, number)


def zeros(kind: Any, lanes: int) -> Any:
    """A vector of zeros."""
    return ir.Constant(ir.VectorType(kind, lanes), [0.0 if kind in (FLOAT32, FLOAT64) else 0] * lanes)


class Kept:
    """A variable that lives through a loop; LLVM keeps it in a register."""

    def __init__(self, builder: Any, value: Any) -> None:
        self._builder = builder
        self._place = cgutils.alloca_once_value(builder, value)

    @property
    def value(self) -> Any:
        """What it holds where instructions are written."""
        return self._builder.load(self._place)

    @value.setter
    def value(self, value: Any) -> None:
        self._builder.store(value, self._place)


class Code:
    """Writes instructions on vectors. ``builder`` has all the simple ones; here are those that take more than one, or a type's name."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def kept(self, value: Any) -> Kept:
        """A variable that begins with ``value``."""
        return Kept(self.builder, value)

    def each(self, count: Any) -> Any:
        """Context manager of a loop, whose ``index`` goes from 0 to ``count`` - 1."""
        return cgutils.for_range(self.builder, count)

    def like(self, vector: Any, number: float) -> Any:
        """``number`` in every lane of such a vector."""
        return ir.Constant(vector.type, [number] * vector.type.count)

    def load(self, address: Any, offset: Any, kind: Any) -> Any:
        """The vector of numbers that lies ``offset`` bytes behind ``address``."""
        vector = ir.VectorType(kind, 8 * VECTOR_BYTES // _bits(kind))
        return self.builder.load(self.builder.inttoptr(self.builder.add(address, offset), vector.as_pointer()), align=1)

    def load_some(self, address: Any, offset: Any, kind: Any, flags: Any) -> Any:
        """`load` of the flagged numbers alone: nothing else is looked at; 0 in place of the others."""
        none = zeros(kind, flags.type.count)
        place = self.builder.inttoptr(self.builder.add(address, offset), none.type.as_pointer())
        return self._call(f"llvm.masked.load.{_name(none.type)}.p0", none.type, place, ir.Constant(INT32, 1), flags, none)

    def load_one(self, address: Any, offset: Any, kind: Any) -> Any:
        """The number that lies ``offset`` bytes behind ``address``."""
        return self.builder.load(self.builder.inttoptr(self.builder.add(address, offset), kind.as_pointer()), align=1)

    def store_some(self, value: Any, address: Any, offset: Any, flags: Any) -> None:
        """`store` of the flagged numbers alone: nothing else is touched."""
        place = self.builder.inttoptr(self.builder.add(address, offset), value.type.as_pointer())
        self._call(f"llvm.masked.store.{_name(value.type)}.p0", ir.VoidType(), value, place, ir.Constant(INT32, 1), flags)

    def store(self, value: Any, address: Any, offset: Any) -> None:
        """Put ``value`` ``offset`` bytes behind ``address``."""
        self.builder.store(value, self.builder.inttoptr(self.builder.add(address, offset), value.type.as_pointer()), align=1)

    def load_word(self, address: Any, offset: Any) -> Any:
        """The 64 bits that lie ``offset`` bytes behind ``address``."""
        return self.load_one(address, offset, INT64)

    def increment(self, address: Any, number: Any) -> None:
        """Add 1 to element ``number`` of the array of 32-bit counters at ``address``."""
        place = self.builder.gep(self.builder.inttoptr(address, INT32.as_pointer()), [number])
        self.builder.store(self.builder.add(self.builder.load(place), ir.Constant(INT32, 1)), place)

    def prefetch(self, address: Any, offset: Any) -> None:
        """Have the line ``offset`` bytes behind ``address`` brought near. Any address will do: there is no fault."""
        place = self.builder.inttoptr(self.builder.add(address, offset), ir.IntType(8).as_pointer())
        to_read, nearest, data = (ir.Constant(INT32, value) for value in (0, 3, 1))
        self._call("llvm.prefetch.p0", ir.VoidType(), place, to_read, nearest, data)

    def squeeze(self, vector: Any, flags: Any, address: Any) -> Any:
        """Put the flagged elements of a vector of 32-bit integers to ``address``, side by side; returns the address behind them."""
        place = self.builder.inttoptr(address, INT32.as_pointer())
        self._call(f"llvm.masked.compressstore.{_name(vector.type)}", ir.VoidType(), vector, place, flags)
        return self.builder.add(address, self.builder.shl(self.builder.ctpop(self.mask(flags)), word(2)))

    def squeeze_within(self, vector: Any, flags: Any, address: Any) -> Any:
        """`squeeze` for integers of 16 or 32 bits, which writes a whole vector to ``address``. Where `AVX512`."""
        name = f"llvm.x86.avx512.mask.compress.{_name(vector.type)}"
        nothing = zeros(vector.type.element, vector.type.count)
        self.store(self._call(name, vector.type, vector, nothing, flags), address, word(0))
        width = word(vector.type.element.width // 8)
        return self.builder.add(address, self.builder.mul(self.builder.ctpop(self.mask(flags)), width))

    def shifted16(self, vector: Any, by: Any) -> Any:
        """A whole vector of 16-bit integers shifted left, lane by lane; ``by`` 16 or more leaves zero. Where `AVX512`."""
        return self._call("llvm.x86.avx512.psllv.w.512", vector.type, vector, by)

    def squared_pairs(self, vector: Any) -> Any:
        """The sums of squares of neighbours in a whole vector of signed 16-bit integers, in 32 bits. Where `AVX512`."""
        pairs = ir.VectorType(INT32, vector.type.count // 2)
        return self._call("llvm.x86.avx512.pmaddw.d.512", pairs, vector, vector)

    def looked_up(self, table: Any, places: Any) -> Any:
        """The bytes of ``table``, 16 that are repeated, at ``places`` from 0 to 15; 0 at those from 128 on. Where `AVX512`."""
        return self._call("llvm.x86.avx512.pshuf.b.512", table.type, table, places)

    def sum(self, vector: Any) -> Any:
        """The sum of all lanes of integers."""
        return self.reduced("add", vector)

    def increase(self, address: Any, offset: Any, by: Any) -> None:
        """Add ``by`` to the 64-bit integer that lies ``offset`` bytes behind ``address``."""
        self.store(self.builder.add(self.load_word(address, offset), by), address, offset)

    def repeated(self, value: Any, lanes: int) -> Any:
        """``value`` in every lane."""
        kind = ir.VectorType(value.type, lanes)
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(INT32, 0))
        return self.builder.shuffle_vector(one, one, zeros(INT32, lanes))

    def first(self, count: Any, lanes: int) -> Any:
        """Flags: the first ``count`` of so many lanes."""
        numbers = ir.Constant(ir.VectorType(INT64, lanes), list(range(lanes)))
        return self.builder.icmp_signed("<", numbers, self.repeated(count, lanes))

    def transposed(self, rows: Sequence[Any]) -> list[Any]:
        """The columns of as many vectors as they have lanes, a power of two."""
        found, step = list(rows), len(rows) // 2
        while step:
            for one in (number for number in range(len(found)) if not number & step):
                # Two blocks beside the diagonal change places.
                places = [lane + len(found) - step if lane & step else lane for lane in range(len(found))]
                kind, pair = ir.VectorType(INT32, len(found)), (found[one], found[one + step])
                for number, by in ((one, 0), (one + step, step)):
                    found[number] = self.builder.shuffle_vector(*pair, ir.Constant(kind, [place + by for place in places]))
            step //= 2
        return found

    def larger_float(self, one: Any, other: Any) -> Any:
        """The larger of floats, lane by lane; that of a number and NaN is the number."""
        return self._call(f"llvm.maxnum.{_name(one.type)}", one.type, one, other)

    def smaller_float(self, one: Any, other: Any) -> Any:
        """The smaller of floats, lane by lane; that of a number and NaN is the number."""
        return self._call(f"llvm.minnum.{_name(one.type)}", one.type, one, other)

    def float32(self, vector: Any) -> Any:
        """Unsigned integers as fp32 values."""
        return self.builder.uitofp(vector, ir.VectorType(FLOAT32, vector.type.count))

    def larger(self, one: Any, other: Any) -> Any:
        """The larger of unsigned integers, lane by lane."""
        return self._call(f"llvm.umax.{_name(one.type)}", one.type, one, other)

    def larger_signed(self, one: Any, other: Any) -> Any:
        """The larger of signed integers, lane by lane."""
        return self._call(f"llvm.smax.{_name(one.type)}", one.type, one, other)

    def smaller(self, one: Any, other: Any) -> Any:
        """The smaller of unsigned integers, lane by lane."""
        return self._call(f"llvm.umin.{_name(one.type)}", one.type, one, other)

    def largest(self, vector: Any) -> Any:
        """Of all lanes of unsigned integers."""
        return self.builder.zext(self.reduced("umax", vector), INT64)

    def smallest(self, vector: Any) -> Any:
        """Of all lanes of unsigned integers."""
        return self.builder.zext(self.reduced("umin", vector), INT64)

    def total(self, vectors: Sequence[Any]) -> Any:
        """The sum of all lanes of vectors of float64."""
        together = vectors[0]
        for each in vectors[1:]:
            together = self.builder.fadd(together, each)
        name = f"llvm.vector.reduce.fadd.{_name(together.type)}"
        return self._call(name, FLOAT64, ir.Constant(FLOAT64, 0.0), together, flags=_ANY_ORDER)

    def totals(self, vectors: Sequence[Any]) -> Any:
        """A vector of the sums of all lanes of each of so many vectors of fp32, at most as many as one of them has lanes."""
        left = list(vectors)
        while len(left) > 1 or left[0].type.count > len(vectors):
            # Neighbours are added up, within two vectors at a time as long as there are two.
            one, other = left[0], left[1] if len(left) > 1 else left[0]
            lanes = range(0, one.type.count * min(2, len(left)), 2)
            even, odd = (ir.Constant(ir.VectorType(INT32, len(lanes)), [lane + by for lane in lanes]) for by in (0, 1))
            pairs = zip(left[::2], left[1::2], strict=True) if len(left) > 1 else [(one, other)]
            left = [self.add(*(self.builder.shuffle_vector(a, b, each) for each in (even, odd))) for a, b in pairs]
        return left[0]

    def add(self, one: Any, other: Any) -> Any:
        """A sum, of which no zero's sign matters."""
        return self.builder.fadd(one, other, flags=_ANY_ORDER)

    def multiply_add(self, one: Any, other: Any, added: Any) -> Any:
        """one * other + added, with one rounding or two."""
        return self.builder.fadd(self.builder.fmul(one, other, flags=_ANY_ORDER), added, flags=_ANY_ORDER)

    def parts(self, vector: Any, count: int) -> list[Any]:
        """The vector in ``count`` equal parts."""
        lanes = vector.type.count // count
        places = (list(range(part * lanes, (part + 1) * lanes)) for part in range(count))
        return [self.builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(INT32, lanes), each)) for each in places]

    def widened(self, vector: Any, kind: Any) -> Any:
        """Unsigned integers as wider ones."""
        return self.builder.zext(vector, ir.VectorType(kind, vector.type.count))

    def bits_as(self, vector: Any, kind: Any) -> Any:
        """The same bits, as another kind of numbers."""
        lanes = vector.type.count * _bits(vector.type.element) // _bits(kind)
        return self.builder.bitcast(vector, ir.VectorType(kind, lanes))

    def float64(self, vector: Any) -> Any:
        """fp32 values as float64."""
        return self.builder.fpext(vector, ir.VectorType(FLOAT64, vector.type.count))

    def mask(self, flags: Any) -> Any:
        """Flags as the bits of a word, the first lowest."""
        return self.builder.zext(self.builder.bitcast(flags, ir.IntType(flags.type.count)), INT64)

    def reduced(self, name: str, vector: Any) -> Any:
        """All lanes of integers taken together by an operation of LLVM."""
        return self._call(f"llvm.vector.reduce.{name}.{_name(vector.type)}", vector.type.element, vector)

    def _call(self, name: str, result: Any, *arguments: Any, flags: Sequence[str] = ()) -> Any:
        module = self.builder.module
        declared = module.globals.get(name) or ir.Function(module, ir.FunctionType(result, [each.type for each in arguments]), name)
        return self.builder.call(declared, arguments, fastmath=flags)


@jit(inline="always")
def address(array: Any) -> Any:
    """Where an array begins, for passes of explicit vectors."""
    return uint64(array.ctypes.data)


def array_at(context: Any, builder: Any, kind: Any, data: Any, shape: Sequence[Any]) -> Any:
    """The array of a numba type whose elements are at ``data``."""
    size = word(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    strides = [size] if len(shape) == 1 else [builder.mul(size, shape[1]), size]
    array = arrays.make_array(kind)(context, builder)
    arrays.populate_array(array, data, shape, strides, size, None)
    return array._getvalue()


def array_of(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """What an array of a numba type consists of: ``data``, ``nitems``, ``shape``..."""
    return arrays.make_array(kind)(context, builder, value)


def _room(kind: Any, dimensions: int) -> Any:
    """`room` or `rooms`."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shape = arguments[1:]
        count = shape[0] if dimensions == 1 else builder.mul(*shape)
        place = builder.alloca(context.get_data_type(kind.dtype), size=count)
        return array_at(context, builder, signature.return_type, place, shape)

    return types.Array(kind.dtype, dimensions, "C", aligned=False)(kind, *[int64] * dimensions), build


@intrinsic
def room(context: Any, kind: Any, count: Any) -> Any:
    """An array (count,) of elements of a numba ``kind``, which holds anything, until the loop that asked for it, once, is done.

    Arrays that numba makes itself would take its own runtime, which is not there when a loop is loaded without it.
    """
    return _room(kind, 1)


@intrinsic
def rooms(context: Any, kind: Any, rows: Any, count: Any) -> Any:
    """`room`, (rows, count)."""
    return _room(kind, 2)


@intrinsic
def flat(context: Any, array: Any) -> Any:
    """The elements of an array as one row, (n,)."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = array_of(context, builder, *signature.args, *arguments)
        return array_at(context, builder, signature.return_type, found.data, [found.nitems])

    return types.Array(array.dtype, 1, "C", aligned=array.aligned)(array), build


@intrinsic
def float_of_bits(context: Any, bits: Any) -> Any:
    """The float32 that 32 bits are."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], FLOAT32)

    return types.float32(types.int32), build


@intrinsic
def bits_of_float(context: Any, number: Any) -> Any:
    """The 32 bits of a float32."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], INT32)

    return types.int32(types.float32), build


@intrinsic
def prefetch(context: Any, address: Any) -> Any:
    """`Code.prefetch` of an address, for loops that numba makes vectors of."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        Code(builder).prefetch(arguments[0], word(0))
        return context.get_dummy_value()

    return types.void(types.uint64), build


def _bits(kind: Any) -> int:
    """How wide one number is."""
    return {FLOAT32: 32, FLOAT64: 64}.get(kind) or int(kind.width)


def _name(vector: Any) -> str:
    """LLVM's name of a type of vectors."""
    return f"v{vector.count}{vector.element.intrinsic_name}"
