"""Provides a folder from which transformers reads the weights of a checkpoint, and nothing else.

Weights of local checkpoints are symlinked. Those of public repositories are downloaded to huggingface_hub's cache and symlinked too. Those
of private or gated repositories are copied into the folder itself and deleted with it. Weights that an adapter changes are computed and
written to one more file, in fp32: of several files with the same tensor, transformers loads that of the last.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from analyzers.checkpoints import Checkpoint, MergedCheckpoint, RangeFile, Tensor
from analyzers.checkpoints.formats.safetensors_header import written_header
from analyzers.checkpoints.local import LocalFile
from analyzers.checkpoints.repository import copy_range
from analyzers.core.errors import ModelTooLarge
from analyzers.core.formatting import size
from analyzers.core.request import Progress

_SPARE = 1 << 30  # disk space left for other programs


class WeightFolder:
    """The weights of ``checkpoint`` in ``folder``. local: the folder of its files, None for a Hub repository; token: the Hub token."""

    def __init__(self, checkpoint: Checkpoint, folder: Path, local: Path | None, token: str | bool | None) -> None:
        self._merged = checkpoint if isinstance(checkpoint, MergedCheckpoint) else None
        self._checkpoint = checkpoint.merge.base if isinstance(checkpoint, MergedCheckpoint) else checkpoint
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
        if self._merged is not None:
            yield from self._write_merged(self._merged)
        self._link()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The stored tensors; none of a merged checkpoint, whose layers cannot be read from its files one at a time."""
        return () if self._merged else self._checkpoint.tensors

    def opened(self) -> list[RangeFile]:
        """Open the fetched files, in the order to which the tensors refer."""
        return [LocalFile(self._folder / self._name(number), file.path, file.size) for number, file in enumerate(self._checkpoint.files)]

    def _download(self) -> Iterator[int]:
        from analyzers.checkpoints.hub.shared_cache import download

        sizes = {file.path: file.size for file in self._checkpoint.files}
        yield from download(self._checkpoint.ref, self._checkpoint.commit, sizes, self._token)

    def _copy(self) -> Iterator[int]:
        done = 0
        for number, file in enumerate(self._checkpoint.files):
            with (self._folder / self._name(number)).open("wb") as copy:
                for count in copy_range(file, 0, file.size, copy):
                    done += count
                    yield done

    def _write_merged(self, merged: MergedCheckpoint) -> Iterator[Progress]:
        """Write the tensors that are not those of the base into a file after its own."""
        stored = {tensor.name for tensor in self._checkpoint.tensors}
        changed = [each for each in merged.tensors if each.file >= len(self._checkpoint.files) or each.name not in stored]
        total, done = sum(tensor.nbytes for tensor in changed), 0
        if total > max(0, shutil.disk_usage(self._folder).free - _SPARE):
            raise ModelTooLarge(f"The changed weights need {size(total)} of disk, in fp32, which this machine does not have.")
        with (self._folder / self._name(len(self._checkpoint.files))).open("wb") as out:
            out.write(written_header((tensor.name, tensor.dtype, tensor.shape, tensor.nbytes) for tensor in changed))
            for tensor in changed:
                for count in copy_range(merged.files[tensor.file], tensor.offset, tensor.nbytes, out):
                    done += count
                    yield Progress(done=done, total=total, unit="bytes", note="merging the adapter")

    def _link(self) -> None:
        (self._folder / "generation_config.json").write_text("{}")  # otherwise transformers looks for it elsewhere
        for number, file in enumerate(self._checkpoint.files):
            place = self._folder / self._name(number)
            if not place.exists():
                place.symlink_to(self._source(file))
        if self._merged is not None or len(self._checkpoint.files) > 1:
            # Built from the headers, not from the repository's index: transformers opens whatever files an index names.
            last = len(self._checkpoint.files)
            tensors = self._merged.tensors if self._merged is not None else self._checkpoint.tensors
            places = {tensor.name: self._name(min(tensor.file, last)) for tensor in tensors}
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
        return "model.safetensors" if len(self._checkpoint.files) == 1 and self._merged is None else f"model-{number + 1:05}.safetensors"
