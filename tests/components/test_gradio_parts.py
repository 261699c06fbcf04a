"""The pages use Gradio's public parts only."""

import re
from pathlib import Path

COMPONENTS = Path(__file__).parents[2] / "components"
_PUBLIC = {"gradio", "gradio.utils"}  # get_space, which its documentation names


def test_no_private_part_of_gradio_is_used() -> None:
    for path in COMPONENTS.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        assert set(re.findall(r"^\s*(?:from|import) (gradio(?:\.\w+)*)", source, flags=re.MULTILINE)) <= _PUBLIC, path
        assert not re.search(r"\b(?:gr|app|blocks|page|event|request|request_model)\._\w", source), path
