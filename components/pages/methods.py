"""The methods page: the meaning of every answer, its computation, its source, and all limits."""

import gradio as gr

from analyzers import ANALYZERS, limits
from analyzers.dtype_detection.classifier import fitted
from analyzers.errors import MantissaError
from components.dtype import methods as passport
from components.forms.fields import QUIET
from components.look.navigation import build_navigation, title
from components.plots.dtype_detection import reliability
from components.running.jobs import sentence
from components.running.runs import failed
from components.site import archive
from components.text.markup import table
from components.text.render import macros

_PARTS = macros("pages/templates/methods.html")
_LOOK_SECONDS = 1.0
_ALL = {"quick": "quick and exact mode", "limits": "limits", "sources": "sources"}


def build(page: gr.Blocks) -> None:
    """Lay out the page and wire it. Call inside ``page``."""
    build_navigation("Methods")
    about = "Every definition, how often it is wrong, its source, and every limit."
    gr.HTML(title("How does Mantissa know?", about), elem_classes="m-plain")
    above, below = methods_html()
    gr.HTML(above, elem_classes="m-plain")
    gr.Plot(reliability(fitted().evaluation), show_label=False, label="Reliability of the classifier", elem_classes="m-figure")
    library = gr.HTML(elem_classes="m-plain", elem_id="m-library-fit")
    gr.HTML(below, elem_classes="m-plain")
    ticking = gr.Timer(_LOOK_SECONDS, active=False)
    page.load(_opened, None, [library, ticking], queue=False, **QUIET)
    ticking.tick(_looked, None, [library, ticking], queue=False, **QUIET)


def _opened() -> tuple[str, gr.Timer]:
    """The classifier fitted with the library's labels; if there are new ones, a fit starts and the timer polls until it is done."""
    ours = archive.library()
    if ours is not None:
        ours.refit_soon()
    return _looked()


def _looked() -> tuple[str, gr.Timer]:
    ours = archive.library()
    try:
        found, labels = (ours.fitting(), ours.counts().current) if ours is not None else (None, 0)
    except MantissaError as error:
        return failed(sentence(error)), gr.Timer(active=False)
    text = f'<div class="m-prose">{passport.with_library(found, labels)}</div>'
    return text, gr.Timer(active=found is not None and found.running)


def methods_html() -> tuple[str, str]:
    """The text of the page: above and below the reliability plot."""
    above, below = passport.methods()
    others = [analyzer.component("methods").methods() for analyzer in ANALYZERS.values() if analyzer.component("methods") is not passport]
    contents = {analyzer.title: analyzer.component("methods").CONTENTS for analyzer in ANALYZERS.values()} | {"All": _ALL}
    rest = "".join((below, *others, _limits(), str(_PARTS.sources())))
    return f'<div class="m-prose">{_PARTS.contents(contents)}{above}</div>', f'<div class="m-prose">{rest}</div>'


def _limits() -> str:
    rows = [(limit.name, f"{limit.value:,}", limit.unit, limit.why, limit.variable) for limit in limits.LIMITS]
    listed = table(("Limit", "Value", "Unit", "Why", "Variable"), rows, frozenset({1}), stacked=True)
    return str(_PARTS.limits(listed))
