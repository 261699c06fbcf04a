"""The built-in text: 64 instruction and answer pairs written for this project, so that everything runs with no network.

Tasks and answer lengths vary on purpose (one word to about 120 words): what is computed per sample then differs by sample.
The built-in sample checkpoints are trained on exactly this text, in the layout of `Pair.prompt` and `Pair.output`.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

_FILE = Path(__file__).with_name("builtin_text.jsonl")


@dataclass(frozen=True, slots=True)
class Pair:
    """One instruction with its answer; ``input`` is what the instruction is about, and may be empty.

    where: where it was read, in words for errors; "" for what was not read from a file.
    """

    instruction: str
    input: str
    output: str
    where: str = field(default="", compare=False)

    @property
    def prompt(self) -> str:
        """What stands before the answer: the instruction, its input on a line of its own if there is one, and a blank line."""
        return "\n".join(filter(None, (self.instruction, self.input))) + "\n\n"


def builtin_pairs() -> list[Pair]:
    """The 64 pairs, in their fixed order."""
    with _FILE.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [Pair(instruction=row["instruction"], input=row.get("input", ""), output=row["output"]) for row in rows]
