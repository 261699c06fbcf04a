"""The built-in text: 64 instruction-answer pairs written for this project, so that everything runs offline.

Tasks and answer lengths (one word to about 120 words) vary on purpose, so that per-sample results differ. The built-in sample checkpoints
are trained on exactly this text, formatted by `Pair.prompt` and `Pair.output`.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

_FILE = Path(__file__).with_name("builtin_text.jsonl")


@dataclass(frozen=True, slots=True)
class Pair:
    """An instruction and its answer; ``input`` is the text the instruction refers to, and may be empty.

    where: location in the source file, for error messages; "" if not read from a file.
    """

    instruction: str
    input: str
    output: str
    where: str = field(default="", compare=False)

    @property
    def prompt(self) -> str:
        """Text before the answer: the instruction, the input (if any) on its own line, and a blank line."""
        return "\n".join(filter(None, (self.instruction, self.input))) + "\n\n"


def builtin_pairs() -> list[Pair]:
    """Return the 64 pairs in fixed order."""
    with _FILE.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [Pair(instruction=row["instruction"], input=row.get("input", ""), output=row["output"]) for row in rows]
