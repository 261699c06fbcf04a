"""Sets up what the rows read: each function makes files in a folder or starts a Hub, for as long as its rows run.

``python -m benchmarks.inputs WHAT ARGUMENTS`` writes files, in a process of its own, because the memory of the runner would count as that
of every program that it starts.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hub.architectures import llama, lora
from tests.hub.process import HubProcess

from .child import run

OFFLINE = {"HF_HUB_OFFLINE": "1"}
_PIECE = 8 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of what is measured. weights: layers, width, FFN width and vocabulary of a Llama that is only read; toy, model: the
    same of Llamas that are run; heads: tokens, width and vocabulary; delay: of the Hub's answers, in seconds; downloaded: bytes.
    """

    weights: tuple[int, int, int, int] = (22, 2048, 5632, 32000)  # 1.1 billion parameters, 2.2 GB in bf16
    toy: tuple[int, int, int, int] = (8, 384, 1024, 8192)
    model: tuple[int, int, int, int] = (10, 768, 2048, 32000)  # 120 million parameters
    heads: tuple[int, int, int] = (512, 512, 32000)
    delay: str = "0.05"
    downloaded: str = "4000000000"


SIZES = {
    "cpu": Sizes(),
    "cuda": Sizes(toy=(8, 1024, 4096, 32000), model=(8, 1024, 4096, 32000), heads=(4096, 2048, 128_000)),
    "small": Sizes((2, 256, 512, 1000), (2, 128, 256, 512), (2, 128, 256, 512), (64, 256, 512), "0", "1000000"),
}


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the placeholders of commands stand for, and variables of their environment."""

    values: Mapping[str, str]
    variables: Mapping[str, str]


@contextmanager
def nothing(folder: Path, sizes: Sizes) -> Iterator[Inputs]:
    """Nothing but the sizes of random numbers."""
    tokens, width, vocabulary = map(str, sizes.heads)
    yield Inputs({"tokens": tokens, "width": width, "vocabulary": vocabulary}, OFFLINE)


@contextmanager
def fine_tunes(folder: Path, sizes: Sizes) -> Iterator[Inputs]:
    """A Llama in bf16, one with 30% and one with 1% of its values changed, and an adapter of rank 64."""
    kinds = {
        "base": ("bf16", "none"), "tuned": ("bf16", "scattered-0.3"), "slight": ("bf16", "scattered-0.01"), "adapter": ("adapter", "none"),
    }  # fmt: skip
    for name, kind in kinds.items():
        _write("weights", str(folder / name), *map(str, sizes.weights), *kind)
    yield Inputs({name: str(folder / name) for name in kinds}, OFFLINE)


@contextmanager
def wide(folder: Path, sizes: Sizes) -> Iterator[Inputs]:
    """Half of that Llama in fp32, with values that bf16 holds."""
    layers, *shape = map(str, sizes.weights)
    _write("weights", str(folder / "wide"), str(int(layers) // 2 - 1 or 1), *shape, "bf16-as-fp32", "none")
    yield Inputs({"wide": str(folder / "wide")}, OFFLINE)


@contextmanager
def hub(folder: Path, sizes: Sizes) -> Iterator[Inputs]:
    """A Hub with models of 141 GB that exist only while they are read, a GPTQ copy, and a mixture of experts of 90,619 tensors."""
    kinds = {"base": "bf16", "tuned": "bf16+small-steps", "other": "bf16+independent", "merged": "bf16+merged-0.35", "gptq": "gptq"}
    llamas = [f"org/{name}={kind}" for name, kind in kinds.items()]
    with HubProcess(*(f"--llama={each}" for each in llamas), "--mixture=org/mixture", f"--delay={sizes.delay}") as process:
        yield Inputs({"downloaded": sizes.downloaded}, process.environ(folder))


@contextmanager
def toy(folder: Path, sizes: Sizes) -> Iterator[Inputs]:
    """A Llama with random weights in fp32, and the samples' tokenizer."""
    _write("toy", str(folder / "toy"), *map(str, sizes.toy))
    yield Inputs({"toy": str(folder / "toy")}, OFFLINE)


@contextmanager
def model(folder: Path, sizes: Sizes) -> Iterator[Inputs]:
    """A larger one, for the analyses that run whole models."""
    _write("toy", str(folder / "model"), *map(str, sizes.model))
    yield Inputs({"model": str(folder / "model")}, OFFLINE)


SetUp = Callable[[Path, Sizes], AbstractContextManager[Inputs]]


def _write(what: str, *arguments: str) -> None:
    run([sys.executable, "-m", "benchmarks.inputs", what, *arguments], OFFLINE)


def weights(folder: Path, layers: int, hidden: int, width: int, vocabulary: int, lineage: str, update: str) -> None:
    """Write a Llama; "adapter" in place of a lineage: a LoRA of its linear layers.

    Through to the disk, since later writing back would disturb measurements.
    """
    shape = layers, hidden, width, vocabulary
    folder.mkdir(parents=True)
    for name, contents in (lora(*shape) if lineage == "adapter" else llama(*shape, 1, lineage, update)).items():
        with (folder / name).open("wb") as file:
            if isinstance(contents, bytes):
                file.write(contents)
                continue
            for start in range(0, contents.size, _PIECE):
                file.write(contents.read(start, min(_PIECE, contents.size - start)))
            file.flush()
            os.fsync(file.fileno())


def toy_model(folder: Path, layers: int, hidden: int, width: int, vocabulary: int) -> None:
    """Write the toy."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from analyzers.language_models.samples import sample_folder

    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": hidden, "intermediate_size": width, "num_hidden_layers": layers, "vocab_size": vocabulary}
    LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=hidden // 64)).save_pretrained(folder)
    for file in sample_folder("tiny-fp32").glob("tokenizer*"):
        shutil.copy(file, folder)


if __name__ == "__main__":
    what, into, *words = sys.argv[1:]
    writers: dict[str, Callable[..., None]] = {"weights": weights, "toy": toy_model}
    writers[what](Path(into), *map(int, words[:4]), *words[4:])
