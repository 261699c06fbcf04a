"""Renders the methods pages on the server, without Gradio."""

from analyzers import ANALYZERS
from components.appearance.navigation import OTHERS, navigation
from components.results.self_contained_page import Page
from components.site import link_previews
from components.site.methods import INDEX, methods_html
from components.text.plain_text import html

_STYLE = """<style>
.m-contents { font-size: 14px; line-height: 1.8; margin-bottom: 24px; }
.m-contents a { color: var(--m-dim); margin-right: 14px; white-space: nowrap; }
.m-prose { line-height: 1.65; overflow-wrap: break-word; }
.m-prose :is(p, li) { max-width: 78ch; }
.m-prose h2 { font: 700 19px/1.35 var(--m-sans); margin: 32px 0 8px; scroll-margin-top: 16px; }
.m-prose :is(code, pre) { font: 400 .9em var(--m-mono); white-space: pre-wrap; }
.m-prose :is(th, td) { padding: 4px 16px 4px 0; text-align: left; }
</style>"""


def methods_page(name: str | None, origin: str) -> str:
    """Render the page about an analyzer, or without a name about all answers. origin: of the app. Raises KeyError if there is none."""
    home, about = ("../", ANALYZERS[name].shown_by or name) if name else ("./", INDEX)
    text, contents = methods_html(about)
    links = " ".join(f'<a href="#{anchor}">{html(title)}</a>' for anchor, title in contents)
    body = f'{navigation(home, "Methods")}<nav class="m-contents" aria-label="Contents">{links}</nav><div class="m-prose">{text}</div>'
    heading = f"{ANALYZERS[name].title}: how it is computed" if name else OTHERS["Methods"][1]
    return Page(heading, "Mantissa", "").served("", link_previews.tags(link_previews.of_page("methods", ""), origin) + _STYLE, body)
