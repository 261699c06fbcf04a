"""The methods page, exit feedback: every definition, its limits and its source."""

from analyzers import limits
from analyzers.exit_feedback.signals import SIGNALS, TOPMASS_TOKENS
from components.text.markup import table

# Anchor -> the section, for the contents of the page.
CONTENTS = {
    "exit": "what is measured",
    "signals": "signals",
    "random-codes": "random codes",
    "exit-training": "training and cost",
    "exit-limits": "what is run",
}
_MEASURED = """
<h2 id="exit">Exit feedback: what is measured</h2>
<p>At the head of a language model are the hidden state h (width d), the logits z = W h over a vocabulary of size V, and a loss. With p
the softmax of z, cross-entropy has the logit gradient e = p &#8722; onehot(gold); backpropagation sends e W into the model, which reads
the whole weight of the head once more. A <b>signal</b> replaces e W without reading W in the backward pass. The head itself always learns
by its exact gradient. Logit scale, bias and softcap are respected, and ignored tokens get exactly 0.</p>
<p><b>Cosine</b>: of signal and exact gradient, for each measured token; mean and percentiles over tokens, also for fifths of them from
low to high loss. <b>Total cosine</b>: of all tokens as one long vector, in which large gradients weigh more. <b>Norm ratio</b>: |S| / |E|
of those vectors. <b>Best scale</b>: S &#183; E / |S|&#178;, the scale with the smallest squared error. The same is measured <b>before the
final norm</b>: both gradients are backpropagated through the norm, to where the layers below receive them.</p>
<p><b>Along the hidden state</b>: the share of |S|&#178; in the direction of h. This component needs no backward pass, because e &#183; z
= (e W) &#183; h; for cross-entropy (p &#8722; y) &#183; z = loss &#8722; entropy of p. But a norm before the head makes the loss
invariant to the length of its input, so that its backward pass removes nearly all of this component.</p>
<h2 id="signals">Signals</h2>
"""

_AFTER = f"""
<p>Codes, the expander U and the hashes and signs of the sketch are drawn from independent streams of the seed. y is the gold token.</p>
<ul>
<li><code>dense</code> = &#945; (e C) U&#7488;: C random normal (V, rank) / &#8730;rank, U (d, rank) with orthonormal columns.</li>
<li><code>hybrid</code> = &#945; [exact, tail] U&#7488;, with rank 128, rank_exact 32, k 8 and &#945; 1. Exact: e<sub>y</sub>
B<sub>y</sub> plus the sum of e<sub>j</sub> B<sub>j</sub> over the k tokens of largest e, with B unit-norm random codes (V, rank_exact);
largest by value, so that positive errors come first, or by magnitude. Tail: a CountSketch of e of all other tokens into rank &#8722;
rank_exact buckets, with random signs.</li>
<li><code>parallel_gold</code> and <code>parallel_topmass</code> = the parallel component + &#955; R(h) c, with rank 32, &#955; 0.1 and a
mass threshold of 0.95. c = e<sub>y</sub> q<sub>y</sub> with q unit-norm random codes (V, rank); topmass adds e<sub>j</sub> q<sub>j</sub>
of the most probable tokens while their cumulative probability is at most the threshold: always the first, at most {TOPMASS_TOKENS}. R(h):
the columns of an orthonormal Q (d, rank), projected onto the complement of h and renormalized to length 1. A large &#955; drowns the
parallel component in codes that are unrelated to W.</li>
<li><code>span</code> needs no W in the backward pass because (e<sub>i</sub> W) &#183; h<sub>j</sub> = e<sub>i</sub> &#183; z<sub>j</sub>;
with d independent anchors it is the exact gradient.</li>
<li><b>Ceilings</b> read W, and bound what less of it could give.</li>
</ul>
<p>hybrid, parallel_gold and parallel_topmass are the published constructions under their published names, with these corrections:
independent streams for codes, expander and signs; tokens that share a bucket add up; a token counts once; ignored tokens get exactly 0;
the incoming gradient is used whatever the loss, its scale and its reduction. In a model narrower than twice a default rank, the default
is half the width, and rank_exact a quarter of the rank.</p>
<h2 id="random-codes">Random codes on a frozen model</h2>
<p><b>Mean cosine of random codes on a frozen model is within noise of 0.</b> Codes that were not part of the model in training are
unrelated to its head: over seeds the cosine has mean 0. For one token its standard deviation is about 1 / &#8730;d, and all tokens share
a draw, so that only more seeds average it out. The result shows the mean over seeds with its standard error, and as a <b>null</b>
fresh_codes: dense with codes drawn anew for every batch of tokens. Random codes show their use only in training, where the weights align
with them (Lillicrap et al., <a href="https://www.nature.com/articles/ncomms13276">Nature Communications 7, 13276</a>: feedback
alignment).</p>
<h2 id="exit-training">Training curves and cost</h2>
<p>A small transformer (two layers, RMSNorm, SwiGLU) is trained on the built-in text under each signal, with the same initial weights and
batches, by AdamW with the same learning rate. <b>Exact</b> is backpropagation; <b>frozen</b> has no feedback, so that only the head
learns. <b>Recovered</b>: (loss frozen &#8722; loss of the signal) / (loss frozen &#8722; loss exact), losses over all rows after the last
step; below 0 a signal is worse than no feedback. It is one run of one small model: a hint, not a law.</p>
<p><b>Cost</b>: loss and gradients of h and W, with all logits at once and in chunks of a quarter of the tokens, median of three runs.
Memory is the peak in addition to weights and inputs. <b>Logit lens</b>: final norm and head applied to the output of an earlier
layer.</p>
"""

_LIMITS = f"""
<h2 id="exit-limits">What is run</h2>
<p>The same models as for gradient conflict. The model runs forward once; all signals are computed from the hidden states of the answer
tokens, with the head in float32. At most {limits.EXIT_SAMPLES} samples, {limits.EXIT_TOKENS:,} tokens, {limits.EXIT_SEEDS} seeds and
{limits.EXIT_STEPS:,} training steps. The sweep has up to seven values of rank, k and anchors, with three seeds for random codes; in a
sweep of the rank, rank_exact keeps its share of it. The exact tokens and positions are in the JSON.</p>
"""


def methods() -> str:
    """The text in HTML."""
    rows = [(name, facts.about) for name, facts in SIGNALS.items()]
    listed = f'<div class="m-card">{table(("Signal", "What it is"), rows)}</div>'
    return _MEASURED + listed + _AFTER + _LIMITS
