"""The methods page, what concerns exit feedback: every definition, its limits and its source."""

from analyzers import limits
from components.exit.names import METHODS
from components.text.markup import table

_MEASURED = """
<h2 id="exit">Exit feedback: what is measured</h2>
<p>At the head of a language model stand the hidden state h (width d), the logits z = W h over a vocabulary of V, and a loss. With p the
softmax of z, cross-entropy has the logit gradient e = p &#8722; onehot(gold); backpropagation sends e W into the model, which takes the
head's whole weight once more. A <b>signal</b> stands in for e W without reading W on the way back. The head itself learns by its exact
gradient in any case. Logit scale, bias and softcap are respected, and ignored tokens get exactly 0.</p>
<p><b>Cosine</b>: of signal and exact gradient, for each measured token; mean and percentiles over tokens, also over fifths of them from
low to high loss. <b>Of all at once</b>: the cosine of all tokens taken as one long vector, in which large gradients weigh more. <b>Norm
ratio</b>: |S| / |E| of those vectors. <b>Best scale</b>: S &#183; E / |S|&#178;, by which the signal comes nearest to the exact gradient.
The same is asked <b>before the final norm</b>: both gradients are sent back through the norm, to where the layers below get them.</p>
<p><b>Along the hidden state</b>: the share of |S|&#178; in the direction of h. Its size is known for nothing, since e &#183; z = (e W)
&#183; h, and for cross-entropy (p &#8722; y) &#183; z = loss &#8722; entropy of p. But a norm before the head makes the loss blind to the
length of what enters it, so that of this part next to nothing is left behind it.</p>
<h2 id="signals">Signals</h2>
"""

_AFTER = """
<p>Codes C are random normal (V, r) / &#8730;r, the expander U a random orthonormal (d, r), drawn from independent streams of the seed; the
signal of <code>dense</code> is &#945; (e C) U&#7488;, &#945; the root mean square norm of the rows of W. A CountSketch adds up tokens that
share a bucket, each with its random sign; gold and the k chosen ones are taken out of it once. <code>span</code> needs no W on the way
back because (e<sub>i</sub> W) &#183; h<sub>j</sub> = e<sub>i</sub> &#183; z<sub>j</sub>: from d independent anchors on it is the exact
gradient. <b>Ceilings</b> read W, and tell what less of it could bring at best.</p>
<h2 id="random-codes">Random codes on a frozen model</h2>
<p><b>Mean cosine of random codes on a frozen model is within noise of 0.</b> Codes that were never in the model while it was trained know
nothing of its head: over seeds the cosine has mean 0. That of one token is off by about 1 / &#8730;d, and all tokens share a draw, so that
only more seeds average it out. The result shows the mean over seeds with its standard error, and beside it the <b>null</b>, fresh_codes:
the same codes drawn anew for every piece of tokens, of which nothing can be learnt. What random codes are good for shows in training only:
there the weights turn towards them (Lillicrap et al., <a href="https://www.nature.com/articles/ncomms13276">Nature Communications 7,
13276</a>: feedback alignment).</p>
<h2 id="exit-training">Training curves and cost</h2>
<p>A small trunk (two layers, RMSNorm, SwiGLU) is trained on the built-in text under each signal, from the same first weights on the same
batches, by AdamW with the same rate. <b>Exact</b> is backpropagation; <b>frozen</b> sends nothing back, so that the head alone learns.
<b>Kept</b>: (loss frozen &#8722; loss of the signal) / (loss frozen &#8722; loss exact), losses over all rows after the last step; below 0
a signal is worse than none. It is one run of one small model: a hint, not a law.</p>
<p><b>Cost</b>: loss and gradients for h and W, with all logits at once and in pieces of a quarter of the tokens, median of three runs.
Memory is what is allocated at one time beyond weights and inputs. <b>Logit lens</b>: final norm and head applied to what an earlier layer
gives.</p>
"""

_LIMITS = f"""
<h2 id="exit-limits">What is run</h2>
<p>The same models as for gradient conflict. The model runs forward once; hidden states of the answers' tokens are kept, and all signals
are made of them with the head in float32. At most {limits.EXIT_SAMPLES} samples, {limits.EXIT_TOKENS:,} tokens, {limits.EXIT_SEEDS} seeds
and {limits.EXIT_STEPS:,} training steps. The sweep tries up to seven values of rank, k and anchors, with three seeds where there are
codes. The exact tokens and positions are in the JSON.</p>
"""


def methods() -> str:
    """The text in HTML."""
    listed = f'<div class="m-card">{table(("Signal", "What it is"), METHODS.items())}</div>'
    return _MEASURED + listed + _AFTER + _LIMITS
