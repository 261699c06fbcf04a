"""The pages use Gradio's public parts only, and style sheets need no force."""

import re
from pathlib import Path

COMPONENTS = Path(__file__).parents[2] / "components"
_PUBLIC = {"gradio", "gradio.utils"}  # get_space, which its documentation names


def test_no_private_part_of_gradio_is_used() -> None:
    for path in COMPONENTS.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        assert set(re.findall(r"^\s*(?:from|import) (gradio(?:\.\w+)*)", source, flags=re.MULTILINE)) <= _PUBLIC, path
        assert not re.search(r"\b(?:gr|app|blocks|page|event|request|request_model)\._\w", source), path


def test_style_sheets_are_short_and_need_no_force() -> None:
    sheets = [path for kind in ("*.css", "*.js") for path in COMPONENTS.rglob(kind)]
    assert not [path for path in sheets if "!important" in path.read_text(encoding="utf-8")]
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sheets) < 350
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in COMPONENTS.rglob("templates/*")) < 800
