"""Defines the theme: colours for light and dark mode, and the Gradio theme and style sheets built from them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import gradio as gr

STYLES = Path(__file__).parent / "styles"
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', monospace"

_COLOURS: dict[str, dict[str, str]] = json.loads((STYLES / "colours.json").read_text(encoding="utf-8"))
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


# Gradio reads its configuration, with all other CSS, only after its first paint, which would shift without these rules: on a phone an
# address that asks for a result shows no examples and options before it, since they come after it.
EARLY_STYLE = (
    "<style>.nav-holder { display: none !important; } .wrap.full { position: fixed !important; inset: 0; } "
    ".gradio-container > .main { max-width: 1120px !important; margin: 0 auto !important; } "
    "@media (max-width: 500px) { .m-asked .column:not(:has(> .m-box, > #m-status .m-status)) "
    "> :is(.m-chips, .m-options:not(.m-fields)) { display: none !important; } }</style>"
)


def result_css() -> str:
    """Return the rules for results and plots, without colours."""
    return (STYLES / "result.css").read_text(encoding="utf-8")


def page_css() -> str:
    """Return all CSS for the Gradio pages; dark colours apply under Gradio's ``.dark``."""
    colours = f":root {{ {_variables(LIGHT)} }}\n.dark {{ {_variables(DARK)} }}\n"
    return colours + result_css() + (STYLES / "page.css").read_text(encoding="utf-8")


def page_head() -> str:
    """Return the contents of the Gradio page's head: the script for keys, focus and pasting."""
    return f"<script>{(STYLES / 'page.js').read_text(encoding='utf-8')}</script>"


def document_css() -> str:
    """Return all CSS for a page outside Gradio; dark colours follow the visitor's system preference."""
    dark = f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}\n"
    return f":root {{ color-scheme: light dark; {_variables(LIGHT)} }}\n{dark}" + result_css()


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
    return theme.set(**tokens, block_shadow="none", block_title_text_size="13px", input_shadow_focus="none")


def _variables(colours: dict[str, str]) -> str:
    named = " ".join(f"--m-{name}: {value};" for name, value in colours.items())
    return f"{named} --m-sans: {SANS}; --m-mono: {MONO};"
