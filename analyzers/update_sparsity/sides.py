"""The sides of a comparison: the base and every tuned checkpoint, opened at once, and whether they can be compared at all."""

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Lock

from analyzers.base import Progress
from analyzers.checkpoints import Access, Alignment, Checkpoint, Repository, Unmatched, open_checkpoint, parse_reference, quoted
from analyzers.checkpoints.adapters import is_adapter
from analyzers.checkpoints.layout import GGUF
from analyzers.checkpoints.quantization import describe_quantization
from analyzers.checkpoints.workers import HEARTBEAT
from analyzers.errors import InvalidRequest, MantissaError, NoWeights, UnsupportedWeights
from analyzers.terminal import plural
from analyzers.update_sparsity.report import SparsityRequest

# Less than this share of the parameters being integers makes no quantized checkpoint.
_FEW = 0.01

# Checkpoints opened at once: each may read its headers over as many connections as the Hub is asked for.
OPENED_AT_ONCE = 8


def side_names(tuned: int) -> list[str]:
    """What errors and notes call the base and each of ``tuned`` checkpoints."""
    return ["Base", "Tuned"] if tuned == 1 else ["Base", *(f"Tuned {number} of {tuned}" for number in range(1, tuned + 1))]


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Context manager that prefixes errors with the name of the side they come from."""
    try:
        yield
    except MantissaError as error:
        raise error.about(name) from None


def open_sides(request: SparsityRequest, access: Access) -> Generator[Progress, None, list[Checkpoint]]:
    """Open the base and every tuned checkpoint, several at once; returns them in that order.

    Yields progress while headers are read. Raises the first error of `open_checkpoint` in this order, naming the side.
    Nothing stays open after an error or when the generator is closed: checkpoints still being opened are closed once they are open.
    """
    texts, names = [request.base, *request.tuned], side_names(len(request.tuned))
    for text, name in zip(texts, names, strict=True):  # a typing error need not wait for the Hub
        with naming(name):
            parse_reference(text, access.local)
    held, opened = _Opened(), list[Checkpoint]()
    pool = ThreadPoolExecutor(OPENED_AT_ONCE, "open")

    def open_one(text: str) -> Checkpoint:
        checkpoint = open_checkpoint(text, access, request.subfolder, held.hold)
        held.hold(checkpoint)
        return checkpoint

    opening = [pool.submit(open_one, text) for text in texts]
    try:
        for one, name in zip(opening, names, strict=True):
            while not wait([one], HEARTBEAT).done:
                yield Progress(done=0, total=0, unit="bytes", note=f"reading headers, {len(opened)} of {len(texts)} checkpoints")
            with naming(name):
                opened.append(one.result())
        return opened
    except BaseException:
        held.close()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def check_side(checkpoint: Checkpoint, name: str, filtered: bool) -> None:
    """Raise UnsupportedWeights, saying what to do, for an adapter and, unless names are ``filtered``, for weights that are integers.

    Raises NoWeights where there are no parameters.
    """
    if all(tensor.buffer for tensor in checkpoint.tensors):
        raise NoWeights(f"{name}: {checkpoint.ref} holds no parameters, only buffers ({quoted(checkpoint.tensors[0].name)}).")
    if is_adapter([file.path for file in checkpoint.files], checkpoint.tensors):
        raise UnsupportedWeights(
            f"{name}: {checkpoint.ref} is an adapter (LoRA or the like), which holds no whole weights: merge it into its base model first "
            "(merge_and_unload of peft, then save_pretrained) and compare the merged model."
        )
    unread = sum(t.elements for t in checkpoint.tensors if not (t.has_values or t.holds_scales or t.buffer))
    # Where integers are so few and nothing else says "quantized", they are something of their own: the report names them.
    few = checkpoint.quantization == "integer" and unread < _FEW * checkpoint.parameters
    if checkpoint.quantization is not None and unread and not (filtered or few):
        raise UnsupportedWeights(
            f"{name}: {checkpoint.ref} holds {describe_quantization(checkpoint.quantization, checkpoint.config)}, which cannot be "
            "compared weight by weight: compare the original models, or choose the tensors that are still floats with an include filter "
            "(for example: embed|norm)."
        )


def check_alignment(sides: Sequence[Checkpoint], names: Sequence[str], alignment: Alignment) -> None:
    """Raise where a tuned checkpoint has no value to compare with one of the base's, saying what differs."""
    for number, (tuned, unmatched) in enumerate(zip(sides[1:], alignment.unmatched, strict=True)):
        matched = [after for group in alignment.groups if (after := group.tuned[number]) is not None]
        said = ""
        if not matched:
            said = _what_differs(sides[0], tuned, unmatched)
        elif not any(tensor.elements for tensor in matched):
            both = "the one tensor that both checkpoints have is" if len(matched) == 1 else f"all {len(matched):,} tensors they share are"
            said = f"There is nothing to compare: {both} empty."
        if said:
            raise InvalidRequest(said if len(names) == 2 else f"{names[1 + number]}: {said}")


def _what_differs(base: Checkpoint, tuned: Checkpoint, unmatched: Unmatched) -> str:
    said = f"There is nothing to compare: no tensor of {tuned.ref} has the name and shape of one of {base.ref}."
    if _is_gguf(base) != _is_gguf(tuned):
        return f"{said} GGUF files give tensors names of their own: compare safetensors or PyTorch files of both, or GGUF files of both."
    if unmatched.misshapen:
        one = unmatched.misshapen[0]
        base_shape, tuned_shape = (" x ".join(map(str, tensor.shape)) or "a single number" for tensor in (one.base, one.tuned))
        return f"{said} {quoted(one.base.name)}, for one, is {base_shape} in the base and {tuned_shape} in the tuned checkpoint."
    if unmatched.integers:
        kinds = ", ".join(sorted({tensor.dtype for tensor in unmatched.integers}))
        hold = plural(len(unmatched.integers), "tensor holds", "tensors hold")
        return f"{said} {hold} no floats ({kinds}): compare models that are not quantized."
    return f"{said} The base has {_described(base)}; the tuned checkpoint has {_described(tuned)}."


def _is_gguf(checkpoint: Checkpoint) -> bool:
    return all(file.path.endswith(GGUF) for file in checkpoint.files)


def _described(checkpoint: Checkpoint) -> str:
    kind = (checkpoint.config or {}).get("model_type")
    named = f" ({quoted(kind, 40)})" if isinstance(kind, str) else ""
    return f"{plural(len(checkpoint.tensors), 'tensor')}, {quoted(checkpoint.tensors[0].name)} first{named}"


class _Opened:
    """Checkpoints, and repositories of those still being opened, that are closed together."""

    def __init__(self) -> None:
        self._held: list[Checkpoint | Repository] = []
        self._lock = Lock()
        self._closed = False

    def hold(self, opened: Checkpoint | Repository) -> None:
        """Take charge of one more; it is closed at once if the others are."""
        with self._lock:
            self._held.append(opened)
            if self._closed:
                opened.close()

    def close(self) -> None:
        """Close all, including repositories whose headers are still being read, and whatever is added later."""
        with self._lock:
            self._closed = True
            for opened in self._held:
                opened.close()
