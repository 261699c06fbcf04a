"""The methods page: the meaning of every answer, its computation, its source, and all limits."""

import gradio as gr

from analyzers import limits
from analyzers.dtype_detection.classifier import fitted
from analyzers.errors import MantissaError
from components.conflict import methods as conflict
from components.exit import methods as signals
from components.look.navigation import build_navigation
from components.passport import methods as passport
from components.plots.classifier import reliability
from components.precision import methods as precision
from components.running.jobs import sentence
from components.running.runs import failed
from components.running.wiring import QUIET
from components.site import archive
from components.sparsity import methods as sparsity
from components.text.markup import table

_TITLE = """<header class="m-title"><h1>How does Mantissa know?</h1>
<p>Every definition, its odds of being wrong, its source, and every limit. Reading it costs nothing.</p></header>"""

_LOOK_SECONDS = 1.0
_CONTENTS = """
<nav class="m-contents" aria-label="Contents"><ul>
<li><b>Passport</b>: <a href="#questions">four questions</a>, <a href="#lineage">passed through</a>, <a href="#extremes">magnitudes</a>,
<a href="#fp16">safe in fp16?</a>, <a href="#training">trained in</a>, <a href="#library-fit">with the library's labels</a></li>
<li><b>Sparsity</b>: <a href="#sparsity">changed or not</a>, <a href="#probe">the probe</a>, <a href="#swallowed">swallowed updates</a>,
<a href="#amounts">how much</a>, <a href="#matching">what is compared</a>, <a href="#trajectory">several checkpoints</a>,
<a href="#spectral">matrices taken apart</a></li>
<li><b>Conflict</b>: <a href="#conflict">what is measured</a>, <a href="#undecided">what is left open</a>, <a href="#whole">whole gradients,
batches, dominance</a>, <a href="#activation">activation and weights</a>, <a href="#topk">top-k</a>, <a href="#conflict-limits">what is
run</a></li>
<li><b>Precision</b>: <a href="#precision">what is compared</a>, <a href="#variants">variants</a>, <a href="#logprobs">log-probabilities and
ratios</a>, <a href="#headroom">headroom</a>, <a href="#precision-limits">what is run</a></li>
<li><b>Exit</b>: <a href="#exit">what is measured</a>, <a href="#signals">signals</a>, <a href="#random-codes">random codes</a>,
<a href="#exit-training">training and cost</a>, <a href="#exit-limits">what is run</a></li>
<li><b>All</b>: <a href="#quick">quick and exact mode</a>, <a href="#limits">limits</a>, <a href="#sources">sources</a></li>
</ul></nav>
"""

_SOURCES = """
<h2 id="sources">Sources</h2>
<ul>
<li>Definitions of the extremes, the labelled models and the rule of thumb:
<a href="https://github.com/stas00/ml-ways/blob/master/numbers/detect-model-pretrained-in-bf16-fp16-fp32.ipynb">stas00/ml-ways</a></li>
<li>The file format: <a href="https://huggingface.co/docs/safetensors/index">safetensors</a></li>
<li>fp16 and fp32: <a href="https://ieeexplore.ieee.org/document/8766229">IEEE 754-2019</a></li>
<li>fp8 and block scales: <a href="https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf">OCP Microscaling
Formats (MX) 1.0</a></li>
</ul>
"""


def build(page: gr.Blocks) -> None:
    """Lay out the page and wire it. Call inside ``page``."""
    build_navigation("Methods")
    gr.HTML(_TITLE, elem_classes="m-plain")
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
    rest = (below, sparsity.methods(), conflict.methods(), precision.methods(), signals.methods(), _limits(), _SOURCES)
    return f'<div class="m-prose">{_CONTENTS}{above}</div>', f'<div class="m-prose">{"".join(rest)}</div>'


def _limits() -> str:
    rows = [(limit.name, f"{limit.value:,}", limit.unit, limit.why, limit.variable) for limit in limits.LIMITS]
    listed = table(("Limit", "Value", "Unit", "Why", "Variable"), rows, frozenset({1}), stacked=True)
    return (
        '<h2 id="limits">Limits</h2><p>Every limit, with the environment variable that overrides it on your own machine.</p>'
        f'<div class="m-card">{listed}</div>'
    )
