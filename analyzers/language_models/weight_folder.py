"""Provides a folder from which transformers reads the weights of a checkpoint, and nothing else.

Weights of local checkpoints are symlinked. Those of public repositories are downloaded to huggingface_hub's cache and symlinked too. Those
of private or gated repositories are copied into the folder itself and deleted with it.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from analyzers.base import Progress
from analyzers.checkpoints import Checkpoint, RangeFile, Tensor
from analyzers.checkpoints.local import LocalFile
from analyzers.errors import ModelTooLarge
from analyzers.formatting import size

_PIECE = 8 << 20
_SPARE = 1 << 30  # disk space left for other programs


class WeightFolder:
    """The weights of ``checkpoint`` in ``folder``. local: the folder of its files, None for a Hub repository; token: the Hub token."""

    def __init__(self, checkpoint: Checkpoint, folder: Path, local: Path | None, token: str | bool | None) -> None:
        self._checkpoint = checkpoint
        self._folder = folder
        self._local = local
        self._token = token

    def check_disk(self) -> None:
        """Raise ModelTooLarge if the files to download do not fit on disk."""
        if self._local is not None:
            return
        sizes = {file.path: file.size for file in self._checkpoint.files}
        place = self._folder
        if self._checkpoint.public:
            from analyzers.checkpoints.hub.shared_cache import cache_folder, cached

            place = cache_folder()
            sizes = {path: size for path, size in sizes.items() if cached(self._checkpoint.ref, self._checkpoint.commit, path) is None}
        needs, has = sum(sizes.values()), max(0, shutil.disk_usage(place).free - _SPARE)
        if needs > has:
            raise ModelTooLarge(f"The weights need {size(needs)} of disk and this machine has {size(has)} left.")

    def fetch(self) -> Iterator[Progress]:
        """Download the missing files. Raises AccessDenied, LimitExceeded, the HubError family."""
        if self._local is None:
            total = sum(file.size for file in self._checkpoint.files)
            for done in self._download() if self._checkpoint.public else self._copy():
                yield Progress(done=done, total=total, unit="bytes", note="downloading the weights")
        self._link()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The stored tensors."""
        return self._checkpoint.tensors

    def opened(self) -> list[RangeFile]:
        """Open the fetched files, in the order to which the tensors refer."""
        return [LocalFile(self._folder / self._name(number), file.path, file.size) for number, file in enumerate(self._checkpoint.files)]

    def _download(self) -> Iterator[int]:
        from analyzers.checkpoints.hub.shared_cache import download

        sizes = {file.path: file.size for file in self._checkpoint.files}
        yield from download(self._checkpoint.ref, self._checkpoint.commit, sizes, self._token)

    def _copy(self) -> Iterator[int]:
        done = 0
        buffer = memoryview(bytearray(_PIECE))
        for number, file in enumerate(self._checkpoint.files):
            with (self._folder / self._name(number)).open("wb") as copy:
                for offset in range(0, file.size, _PIECE):
                    piece = buffer[: min(_PIECE, file.size - offset)]
                    file.read_into(offset, piece)
                    copy.write(piece)
                    done += len(piece)
                    yield done

    def _link(self) -> None:
        (self._folder / "generation_config.json").write_text("{}")  # otherwise transformers looks for it elsewhere
        for number, file in enumerate(self._checkpoint.files):
            place = self._folder / self._name(number)
            if not place.exists():
                place.symlink_to(self._source(file))
        if len(self._checkpoint.files) > 1:
            # Built from the headers, not from the repository's index: transformers opens whatever files an index names.
            places = {tensor.name: self._name(tensor.file) for tensor in self._checkpoint.tensors}
            index = {"metadata": {"total_size": self._checkpoint.nbytes}, "weight_map": places}
            (self._folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")

    def _source(self, file: RangeFile) -> Path:
        if self._local is not None:
            return self._local / file.path
        from analyzers.checkpoints.hub.shared_cache import cached

        found = cached(self._checkpoint.ref, self._checkpoint.commit, file.path)
        assert found is not None
        return found

    def _name(self, number: int) -> str:
        return "model.safetensors" if len(self._checkpoint.files) == 1 else f"model-{number + 1:05}.safetensors"
