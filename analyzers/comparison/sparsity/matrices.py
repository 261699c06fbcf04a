"""Chooses the matrices that are decomposed on request, reads them whole, and computes the `Spectrum` of each."""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing

import numpy as np

from analyzers.checkpoints import Chunk, Span, Tensor, stream, whole_spans
from analyzers.checkpoints.reading.worker_threads import HEARTBEAT
from analyzers.comparison.reading import Pass
from analyzers.comparison.sparsity.rows import Spectrum
from analyzers.core import limits
from analyzers.core.request import Progress
from analyzers.numerics.conversions import changed
from analyzers.numerics.device import Device
from analyzers.numerics.pairs import codes_of

_NUMBER = re.compile(r"[0-9]+")


class Spectra:
    """The matrices of two sides of a pass, decomposed on request. left_out: number of matrices that are not; nbytes: read for them."""

    def __init__(self, found: Pass, sides: Sequence[int], device: Device) -> None:
        self._device, self.rows, self.nbytes = device, list[Spectrum](), 0
        self._sides, self._names = [found.sides[side] for side in sides], [found.names[side] for side in sides]
        both = [(group.sides[sides[0]], group.sides[sides[-1]]) for group in found.alignment.groups]
        pairs = [(a, b) for a, b in both if a is not None and b is not None and len(b.shape) == 2 and b.elements == a.elements > 0]
        self._spans = [whole_spans([pair]) for pair in chosen(pairs, limits.SPECTRAL_MATRICES)]
        self.left_out = len(pairs) - len(self._spans)

    def read(self, before: int) -> Iterator[Progress]:
        """Read one matrix of both sides after the other and measure it; yields progress at least every `HEARTBEAT` seconds.

        before: bytes that were read. Closing the generator stops the reads; the matrix being measured cannot be interrupted.
        """
        total = before + sum(span.nbytes for spans in self._spans for span in spans)
        for number, spans in enumerate(self._spans):
            matrix, start = _Whole(spans[0]), self.nbytes
            note = f"decomposing matrices, {number + 1} of {len(self._spans)}"
            with closing(stream(self._sides, spans, matrix.take, self._names)) as steps:  # type: ignore[type-var]
                for step in steps:
                    self.nbytes = start + step.bytes_read
                    yield Progress(done=before + self.nbytes, total=max(total, before + self.nbytes), unit="bytes", note=note)
            pool = ThreadPoolExecutor(1, "spectrum")
            measured = pool.submit(matrix.spectrum, self._device)
            pool.shutdown(wait=False)
            while not wait([measured], HEARTBEAT).done:
                yield Progress(done=before + self.nbytes, total=max(total, before + self.nbytes), unit="bytes", note=note)
            self.rows.append(measured.result())


def chosen(pairs: Sequence[tuple[Tensor, Tensor]], most: int) -> list[tuple[Tensor, Tensor]]:
    """Return all matrices that are small enough, in order; of more than ``most`` some of every frequent kind, spread over the layers."""
    small = [
        n for n, (base, _) in enumerate(pairs) if base.elements <= limits.SPECTRAL_ELEMENTS and min(base.shape) <= limits.SPECTRAL_SIDE
    ]
    by_kind = sorted(small, key=lambda n: _NUMBER.sub("0", pairs[n][0].name))
    spread = by_kind if len(small) <= most else [by_kind[i * len(small) // most] for i in range(most)]
    return [pairs[n] for n in sorted(spread)]


class _Whole:
    """One matrix of both sides with its mask of changes, filled by the threads of a stream."""

    def __init__(self, span: Span) -> None:
        base, tuned = span.sides
        assert base is not None and tuned is not None
        self._name, self._dtypes, shape = base.name, (base.counted_as, tuned.counted_as), (base.shape[0], base.shape[1])
        self._base, self._tuned = (np.empty(shape, np.float32) for _ in self._dtypes)
        self._changed = np.empty(shape, np.bool_)

    def take(self, _span: Span, chunks: Iterator[Chunk]) -> None:
        """Store the chunks of a span; the work of the stream."""
        for chunk in chunks:
            base, tuned = chunk.sides
            assert base is not None and tuned is not None
            part = slice(chunk.start, chunk.start + base.size)
            for codes, dtype, matrix in ((base, self._dtypes[0], self._base), (tuned, self._dtypes[1], self._tuned)):
                matrix.reshape(-1)[part] = codes_of(codes, dtype, narrow=False).values()
            self._changed.reshape(-1)[part] = changed(base, tuned, self._dtypes)

    def spectrum(self, device: Device) -> Spectrum:
        """Compute the measures, once the whole matrix was read."""
        from analyzers.comparison.sparsity.spectral import MatrixPair, spectrum

        return spectrum(MatrixPair(self._name, self._base, self._tuned, self._changed), device)
