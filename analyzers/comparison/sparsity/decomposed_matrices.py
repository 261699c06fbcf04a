"""Chooses the matrices that are decomposed on request, and computes the `Spectrum` of each from the files."""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from analyzers.checkpoints import Alignment, Checkpoint, Chunk, Span, stream, whole_spans
from analyzers.checkpoints.reading.worker_threads import HEARTBEAT
from analyzers.comparison.sparsity.report import Spectrum
from analyzers.core import limits
from analyzers.numerics.conversions import changed
from analyzers.numerics.device import Device
from analyzers.numerics.pairs import codes_of

_NUMBER = re.compile(r"[0-9]+")


@dataclass(slots=True)
class Matrices:
    """Spans of each matrix of base and last tuned checkpoint that is decomposed. left_out: number of matrices that are not."""

    spans: list[list[Span]]
    left_out: int

    @classmethod
    def of(cls, alignment: Alignment, sides: Sequence[int]) -> "Matrices":
        """Choose all matrices that are small enough; above `limits.SPECTRAL_MATRICES` some of every kind, spread over the layers."""
        pairs = [
            (base, last)
            for group in alignment.groups
            if (base := group.sides[sides[0]]) is not None and (last := group.sides[sides[-1]]) is not None
            if len(last.shape) == 2 and last.elements == base.elements > 0
        ]
        small = [pair for pair in pairs if _fits(pair[0].shape)]
        kinds: dict[str, list[int]] = {}
        for number, (base, _) in enumerate(small):
            kinds.setdefault(_NUMBER.sub("0", base.name), []).append(number)
        chosen = sorted(_spread(list(kinds.values()), limits.SPECTRAL_MATRICES))
        return cls([whole_spans([small[number]]) for number in chosen], len(pairs) - len(chosen))

    @property
    def nbytes(self) -> int:
        """Bytes to read of both sides."""
        return sum(span.nbytes for spans in self.spans for span in spans)


def _fits(shape: tuple[int, ...]) -> bool:
    return shape[0] * shape[1] <= limits.SPECTRAL_ELEMENTS and min(shape) <= limits.SPECTRAL_SIDE


def _spread(kinds: Sequence[Sequence[int]], most: int) -> Iterator[int]:
    """Choose at most ``most`` of all entries: about as many of every kind, evenly spaced, or one of evenly spaced kinds."""
    if len(kinds) > most:
        kinds = [kinds[i * len(kinds) // most][:1] for i in range(most)]
    left = most
    for position, kind in enumerate(sorted(kinds, key=len)):  # small kinds leave room to the larger ones
        count = min(len(kind), left // (len(kinds) - position))
        left -= count
        yield from (kind[i * (len(kind) - 1) // max(1, count - 1)] for i in range(count))


@dataclass(frozen=True, slots=True)
class MatrixStep:
    """Progress: matrices done, the measures of the last one if it is new, and bytes and requests so far."""

    done: int
    spectrum: Spectrum | None
    bytes_read: int
    requests: int


def decompose(matrices: Matrices, sides: Sequence[Checkpoint], names: Sequence[str], device: Device) -> Iterator[MatrixStep]:
    """Read one matrix of both sides after the other and measure it; yields a step at least every `HEARTBEAT` seconds.

    Closing the generator stops the reads. The matrix being measured cannot be interrupted; its result is dropped.
    """
    two, their_names = (sides[0], sides[-1]), (names[0], names[-1])
    nbytes = requests = 0
    for number, spans in enumerate(matrices.spans):
        whole = _Whole(spans[0])
        seen = 0, 0
        with closing(stream(two, spans, whole.take, their_names)) as steps:  # type: ignore[type-var]
            for step in steps:
                seen = step.bytes_read, step.requests
                yield MatrixStep(number, None, nbytes + seen[0], requests + seen[1])
        nbytes, requests = nbytes + seen[0], requests + seen[1]
        pool = ThreadPoolExecutor(1, "spectrum")
        measured = pool.submit(whole.spectrum, device)
        pool.shutdown(wait=False)
        while not wait([measured], HEARTBEAT).done:
            yield MatrixStep(number, None, nbytes, requests)
        yield MatrixStep(number + 1, measured.result(), nbytes, requests)


class _Whole:
    """One matrix of both sides with its mask of changes, filled by the threads of a stream."""

    def __init__(self, span: Span) -> None:
        base, tuned = span.sides
        assert base is not None and tuned is not None
        self.name, self.shape = base.name, (base.shape[0], base.shape[1])
        self._dtypes = base.counted_as, tuned.counted_as
        self.base, self.tuned = (np.empty(self.shape, np.float32) for _ in self._dtypes)
        self.changed = np.empty(self.shape, np.bool_)

    def take(self, _span: Span, chunks: Iterator[Chunk]) -> None:
        """Store the chunks of a span; the work of the stream."""
        for chunk in chunks:
            base, tuned = chunk.sides
            assert base is not None and tuned is not None
            part = slice(chunk.start, chunk.start + base.size)
            for codes, dtype, matrix in ((base, self._dtypes[0], self.base), (tuned, self._dtypes[1], self.tuned)):
                matrix.reshape(-1)[part] = codes_of(codes, dtype, narrow=False).values()
            self.changed.reshape(-1)[part] = changed(base, tuned, self._dtypes)

    def spectrum(self, device: Device) -> Spectrum:
        """Compute the measures, once the whole matrix was read."""
        from analyzers.comparison.sparsity.spectral import MatrixPair, spectrum

        return spectrum(MatrixPair(self.name, self.base, self.tuned, self.changed), device)
