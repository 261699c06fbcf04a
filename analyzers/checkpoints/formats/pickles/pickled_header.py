"""Lists a pickled file's tensors in a header like that of a safetensors file."""

from collections.abc import Iterator, Mapping
from math import prod

from analyzers.checkpoints.formats.pickles.faults import Damaged, Excess, Refused
from analyzers.checkpoints.formats.pickles.objects import DTYPES, Stored
from analyzers.checkpoints.formats.pickles.state_dict import weights
from analyzers.checkpoints.formats.pickles.torch_save import read_legacy, read_zip
from analyzers.checkpoints.formats.pickles.weights_only import as_state_dict, why_no_state_dict
from analyzers.checkpoints.formats.pickles.zip_archive import LOCAL
from analyzers.checkpoints.formats.read_cache import ReadCache
from analyzers.checkpoints.formats.safetensors_header import Header, HeaderTensor
from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.repository import RangeFile
from analyzers.checkpoints.tensor import DTYPE_BITS
from analyzers.checkpoints.words import WORDS
from analyzers.core.errors import InvalidCheckpoint, LimitExceeded, UnsupportedWeights

_VIEWS = 8  # Times the size of the file: tensors may share bytes, and a small file could stand for years of reading.
_FIRST_READ = 64 << 10
_SPARE_BYTES = 64 << 20  # views may cover this many bytes, even in a small file

# First bytes of what is often found in place of weights.
_OTHERS = (
    (b"version https://git-lfs", "is a Git LFS pointer in place of the weights: fetch them with 'git lfs pull'."),
    (b"<", "is a web page or another text in place of the weights: download it again."),
)


def read_pickled(file: RangeFile, checked: int | None = None) -> Header:
    """List the tensors of a file that `torch.save` wrote, in either of its layouts, without unpickling it.

    checked: the number of storages, evenly spaced, whose offsets are verified against the headers next to their data, with a read each;
    None for all. Views become strides (`Tensor.strides`), and every name of tied tensors is listed. From a trainer's checkpoint, only the
    weights are listed (`state_dict.weights`). Nothing that the file names is called: values of unknown classes stay opaque, and tensors
    that cannot be read are in ``omitted``. Raises InvalidCheckpoint for a damaged file, UnsupportedWeights for one without tensors that can
    be read, LimitExceeded; each names the file.
    """
    path = quoted(file.path, 200)
    if file.size == 0:
        raise InvalidCheckpoint(f"{path} is empty: upload or download it again.")
    try:
        return _read(file, checked)
    except Damaged as error:
        raise InvalidCheckpoint(f"{path} is cut off or damaged: {error}. Upload or download it again.") from None
    except Refused as error:
        raise UnsupportedWeights(f"{path} {error}") from None
    except Excess as error:
        raise LimitExceeded(f"{path} {error}") from None


def _read(file: RangeFile, checked: int | None) -> Header:
    pieces = ReadCache(file)
    beginning = pieces.keep(0, min(file.size, _FIRST_READ))
    for first, what in _OTHERS:
        if beginning.startswith(first):
            raise Refused(what)
    contents = read_zip(pieces, checked) if beginning.startswith(LOCAL) else read_legacy(pieces, checked)
    root = as_state_dict(contents.root)
    found, omitted, notes, opaque = weights(root, contents.foreign, contents.storages)
    if contents.constants:
        if not found:
            raise Refused("is a frozen TorchScript program, whose weights are constants of its code: save it before torch.jit.freeze.")
        notes.append(WORDS.note("constants", constants=contents.constants))
    tensors = tuple(_tensors(found, contents.places))
    _check_views(tensors, file.size)
    return Header(tensors, {}, contents.nbytes, tuple(notes), opaque, omitted, contents.refused or why_no_state_dict(root), pickled=True)


def _tensors(found: Mapping[str, Stored], places: Mapping[str, int]) -> Iterator[HeaderTensor]:
    for name, (key, dtype, shape, strides, start, nbytes) in found.items():
        known = DTYPES[dtype.name]
        if known == "F4":  # torch counts bytes, each of which holds two numbers
            shape = (*shape[:-1], 2 * shape[-1]) if shape else (2,)
        begin = places[key] + start
        yield HeaderTensor(name, known, shape, begin, begin + nbytes, strides)


def _check_views(tensors: tuple[HeaderTensor, ...], size: int) -> None:
    """Refuse a file whose views amount to many times its size: reading them would take too long."""
    shown = 0
    seen = set()
    for tensor in tensors:
        place = (tensor.start, tensor.shape, tensor.strides, tensor.dtype)
        if place in seen:
            continue  # tied tensors are read once
        seen.add(place)
        shown += max(tensor.stop - tensor.start, prod(tensor.shape) * DTYPE_BITS[tensor.dtype] // 8)
        if shown > _VIEWS * size + _SPARE_BYTES:
            raise Excess(f"holds tensors of more than {_VIEWS} times its own bytes.")
