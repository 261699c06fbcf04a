"""What shrink and merge say, for reading: ``words.txt`` has a report of every code.

``python -m tests.write.test_words`` writes it again: read the difference as prose before committing it.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig

from analyzers.write.merge import merge
from analyzers.write.report import MergeReport, ShrinkReport, WrittenReport
from analyzers.write.shrink import shrink
from analyzers.write.words import WORDS
from tests.checkpoints.adapters import LOCAL, llama
from tests.checkpoints.adapters import write as write_adapter
from tests.checkpoints.test_gguf_header import written
from tests.dtype.checkpoints import normal, through, write

SENTENCES = Path(__file__).parent / "words.txt"


def _last(items: Iterator[Any]) -> WrittenReport:
    *_, report = items
    assert isinstance(report, ShrinkReport | MergeReport)
    return report


def _reports(root: Path) -> Iterator[tuple[str, WrittenReport]]:
    wide = {"a.weight": through(normal(64, 64), torch.bfloat16).float(), "b.weight": normal(8, 8), "c\n\x1b[31m.bias": torch.ones(4)}
    written(root / "model.gguf", {"w": (np.ones(4, np.float32), None)})
    models = {
        "smaller": write(root / "wide", wide),
        "gguf": root / "model.gguf",
        "quantized": write(root / "fp8", {"a.weight": normal(8, 8).to(torch.float8_e4m3fn), "a.weight_scale_inv": torch.ones(1, 1)}),
        "not asked": write(root / "unknown", wide, {"model_type": "zorg", "auto_map": {"AutoConfig": "zorg.Config"}}),
        "narrow": write(root / "narrow", {"a.weight": normal(8, 8).bfloat16()}),
        "needed": write(root / "needed", {"a.weight": normal(8, 8)}),
    }
    (root / "pickled").mkdir()
    torch.save({"model": wide}, root / "pickled" / "pytorch_model.bin")
    (root / "pickled" / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "pytorch_model.bin"}}')
    torch.save(wide, root / "pickled" / "other.bin")
    for title, model in (models | {"pickled": root / "pickled"}).items():
        yield f"shrink {title}", _last(shrink(str(model), str(root / f"out-{title}"), access=LOCAL))

    def large(model: Any) -> None:
        layers = model.base_model.model.model.layers
        layers[0].self_attn.q_proj.lora_B.default.weight.data.zero_()
        layers[1].self_attn.q_proj.lora_B.default.weight.data[2] *= 1e8

    write_adapter(llama(), LoraConfig(r=2, target_modules=["q_proj"]), root, change=large)
    torch.save({"a": torch.ones(2)}, root / "base" / "other.bin")
    for to in ("fp32", "fp16"):
        yield f"merge {to}", _last(merge(f"{root}/base+{root}/adapter", str(root / f"merged-{to}"), to, LOCAL))


def sentences() -> tuple[str, set[str]]:
    """Write what the reports say, and return their codes."""
    parts, codes = [], set[str]()
    with TemporaryDirectory() as folder:
        for title, report in _reports(Path(folder)):
            text = "\n".join(report.lines())
            parts.append(f"=== {title}\n\n{text}\n".replace(folder, "FOLDER"))
            codes |= {note.code for note in (report.answer, *report.notes)}
    return "\n".join(parts), codes


@pytest.mark.filterwarnings("ignore")
def test_words_are_as_reviewed_and_each_template_is_used() -> None:
    text, codes = sentences()
    assert text == SENTENCES.read_text(), "read the difference, then: python -m tests.write.test_words"
    assert WORDS.templates.keys() <= codes


if __name__ == "__main__":
    SENTENCES.write_text(sentences()[0])
