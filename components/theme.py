"""Defines the colours of light and dark mode, and from them Gradio's theme and the style sheets of pages and documents."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import gradio as gr

_FOLDER = Path(__file__).parent
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', monospace"

_COLOURS: dict[str, dict[str, str]] = json.loads((_FOLDER / "styles/colours.json").read_text(encoding="utf-8"))
LIGHT, DARK = _COLOURS["light"], _COLOURS["dark"]
# Settings of Gradio's theme that use each colour.
_TOKENS = {
    "bg": "body_background_fill background_fill_secondary input_background_fill button_secondary_background_fill_hover",
    "card": "background_fill_primary block_background_fill button_secondary_background_fill "
    "table_even_background_fill table_odd_background_fill",
    "ink": "body_text_color button_secondary_text_color table_text_color",
    "dim": "body_text_color_subdued block_label_text_color block_title_text_color block_info_text_color input_placeholder_color",
    "line": "block_border_color border_color_primary input_border_color button_secondary_border_color table_border_color",
    "accent": "border_color_accent input_border_color_focus button_primary_background_fill "
    "button_primary_background_fill_hover link_text_color link_text_color_hover link_text_color_visited",
    "label-bg": "color_accent_soft",
    "on-accent": "button_primary_text_color",
}


def page_css() -> str:
    """Return the style sheet of Gradio's pages, which mark dark mode by a class of the body."""
    return f":root {{ {_variables(LIGHT)} }}\nbody.dark {{ {_variables(DARK)} }}\n{_rules('result/result.css')}{_rules('styles/page.css')}"


def document_css() -> str:
    """Return the style sheet of a page outside Gradio, which follows the visitor's system."""
    dark = f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}\n"
    return f":root {{ color-scheme: light dark; {_variables(LIGHT)} }}\n{dark}{_rules('result/result.css')}{_rules('styles/document.css')}"


@cache
def plotly_address() -> str:
    """Return the address of Plotly's script, relative to the first page: it names the version, so that browsers may keep it."""
    import plotly

    return f"plotly.js?{plotly.__version__}"


def page_script() -> str:
    """Return the script of Gradio's pages."""
    return _rules("result/result.js") + _rules("styles/page.js")


def page_head() -> str:
    """Return the elements of the head of Gradio's pages. Addresses change with the content, so that browsers may keep it."""
    version = hashlib.sha256((page_css() + page_script()).encode()).hexdigest()[:12]
    named = f'<link rel="stylesheet" href="./page.css?{version}"><script src="./page.js?{version}"></script>'
    return f'<meta name="plotly" content="./{plotly_address()}">{named}'


def gradio_theme() -> "gr.themes.Base":
    """Return Gradio's theme in the product's colours. It uses system fonts only, so that nothing is requested from other servers."""
    import gradio as gr

    theme = gr.themes.Base(
        primary_hue=gr.themes.colors.indigo,
        neutral_hue=gr.themes.colors.zinc,
        radius_size=gr.themes.sizes.radius_md,
        font=[gr.themes.Font("system-ui"), gr.themes.Font("sans-serif")],
        font_mono=[gr.themes.Font("ui-monospace"), gr.themes.Font("monospace")],
    )
    modes = (("", LIGHT), ("_dark", DARK))
    tokens = {f"{name}{mode}": colours[colour] for colour, names in _TOKENS.items() for name in names.split() for mode, colours in modes}
    return theme.set(**tokens, block_shadow="none", input_border_width="1px", block_title_text_size="13px", input_shadow_focus="none")


def _rules(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _variables(colours: dict[str, str]) -> str:
    named = " ".join(f"--m-{name}: {value};" for name, value in colours.items())
    return f"{named} --m-sans: {SANS}; --m-mono: {MONO};"
