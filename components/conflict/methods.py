"""The methods page, what concerns gradient conflict: every definition, its limits and its source."""

from analyzers import limits

# Anchor -> the section, for the contents of the page.
CONTENTS = {
    "conflict": "what is measured",
    "undecided": "numerically undecided pairs",
    "whole": "whole gradients, batches, dominance",
    "activation": "activation and weights",
    "topk": "top-k",
    "conflict-limits": "what is run",
}
# As in the rates of `analyzers.gradient_conflict`, which loading would bring torch along.
TAU = {"float32": 1e-3, "float16": 5e-3, "bfloat16": 2e-2}
_TAUS = ", ".join(f"{tau:g} in {name}" for name, tau in TAU.items())
SOURCE = "https://github.com/ZeroYuHuang/DynamicK-Tuning"

_CONFLICT = f"""
<h2 id="conflict">Gradient conflict: what is measured</h2>
<p>A <b>unit</b> is one neuron of an FFN: its gate row, up row and down column (without a gate: its two; in a mixture of experts one neuron
of one expert), or one row of an attention projection. Its gradient in sample s is g<sub>s</sub>: of the loss of that sample alone, the
mean (or sum) of &#8722;log p over the tokens of the <em>answer</em>; the prompt is read and not learned. Weights stay as they are stored;
nothing is trained. All follows from the Gram matrix of each unit, G = (g<sub>s</sub> &#183; g<sub>r</sub>), which is computed for every
unit and every pair of samples in one forward and one backward pass, with no full gradient ever stored; blocks (gate, up, down) have Gram
matrices of their own, which add up: there are rates for each block, for two of them (gate+up, gate+down, up+down) and for all.</p>
<p><b>Conflict rate</b>: of all pairs of distinct samples whose gradients of the unit are nonzero, not shorter than the floor (a multiple
of the median norm in the layer; by default 0) and longer than epsilon (a norm; by default 0), the share with cos(g<sub>s</sub>,
g<sub>r</sub>) &lt; &#947;, over all units together; &#947; is 0 by default. <b>Gradient-norm similarity</b>:
2&#8214;g&#8214;&#8214;h&#8214; / (&#8214;g&#8214;&#178; + &#8214;h&#8214;&#178;), mean over the
same pairs: 1 for equal norms (Yu et al., <a href="https://arxiv.org/abs/2001.06782">arXiv 2001.06782</a>, Definitions 1 and 2).
<b>Rate as published</b>, the rule of the <a href="{SOURCE}">published run</a>: of the ordered pairs of samples, each sample with itself
included, whose gradients are both above 0, the share with cos &lt; 0, whatever &#947;, floor and epsilon. A pair without a gradient is
not counted at all, which matters in top-k layers; as a sample never conflicts with itself, the rate stays below 1. <b>Similarity as
published</b>: the mean over all S &#215; S ordered pairs, which does not exist (0/0) where a sample has no gradient.</p>
<p><b>Intervals</b> are 95%, by a delete-one jackknife over samples: samples are the independent units, pairs are not, and a bootstrap
would count a sample's pairs with itself.</p>
<h2 id="undecided">Numerically undecided pairs</h2>
<p>Rounding can move a cosine near &#947; to its other side. Next to a rate is the range from the share below &#947; &#8722; &#964; to the
share below &#947; + &#964;, with &#964; = {_TAUS}, as measured against float64. In bfloat16 most unrelated pairs lie within it, and a
rate then says little: the result says when it cannot be trusted. The format in which the model runs decides, not the one it is stored
in.</p>
"""

_WHOLE = """
<h2 id="whole">Whole gradients, batches, dominance</h2>
<p><b>Whole gradients</b>: the Gram matrices of all units add up to that of the layer, and of the model: the same rates, of one long
gradient per sample. Units may conflict often while whole gradients hardly do, since cosines of long vectors of unrelated parts are small
and of either sign. <b>Batches</b>: samples are put into random batches that share none (4 draws); with averaging weights A the Gram of
their mean gradients is A G A&#7488;, and the rate between batches follows as between samples. <b>Noise scale</b>: tr(covariance) / |mean
gradient|&#178;, both unbiased (McCandlish et al., <a href="https://arxiv.org/abs/1812.06162">arXiv 1812.06162</a>, the simple noise
scale): the batch size at which both are equal.</p>
<p><b>Dominance</b>: the largest sample's share of &#8721;|g|&#178;; the effective number of samples (&#8721;|g|&#178;)&#178; /
&#8721;|g|&#8308;; the diversity &#8721;|g<sub>s</sub>|&#178; / |&#8721;g<sub>s</sub>|&#178; (Yin et al., <a
href="https://arxiv.org/abs/1706.05699">arXiv 1706.05699</a>); of each sample the cosine of its gradient with the mean of the others, the
cosine of the mean with and without it, and the share of units in which its gradient has the largest norm.</p>
<h2 id="neurons">Neuron by neuron</h2>
<p>Each neuron (or row of a projection) has the conflict rate, similarity and mean cosine of its own pairs; mean |activation| over all
tokens but the last of each sample; the sample with the largest norm, its share of &#8721;|g|&#178; (top sample share); and the effective
number of samples, as above. Ranked are neurons in which at least half of all pairs of samples count: by conflict rate, then by mean
cosine. The report has up to {neurons} of the most and as many of the least conflicted, and the S &#215; S cosines of the first 8 of each,
to four digits, as far as {cosines:,} numbers allow; <code>--csv</code> writes all neurons, beyond {rows:,} as Parquet too. With a top-k
FFN, the differences compare the means over neurons of the top sample share and of the effective number of samples: a larger share and a
smaller number mean that single samples dominate more.</p>
<h2 id="activation">By activation, and weight by weight</h2>
<p><b>Activation</b>: neurons of each layer are ranked by mean |activation| over the tokens of one random half of the samples (but the last
token of each, which predicts nothing); conflict is that between the samples of the other half, so that the same noise is not in both.
<b>Weights</b>: with N<sub>+</sub> samples whose gradient is positive at a weight and N<sub>&#8722;</sub> negative, opposite signs are
N<sub>+</sub>N<sub>&#8722;</sub> / C(N<sub>+</sub> + N<sub>&#8722;</sub>, 2), agreement is |N<sub>+</sub> &#8722; N<sub>&#8722;</sub>| /
(N<sub>+</sub> + N<sub>&#8722;</sub>), means over weights; signal to noise is &#8721; mean&#178; / &#8721; variance over samples. Without
any common signal it is expected to be 1/S.</p>
"""

_TOPK = f"""
<h2 id="topk">A top-k FFN</h2>
<p>Each token keeps the k neurons with the largest score (the activated gate, up, |up|, their product or its magnitude), or the smallest
set that covers a share of the sum of |score|; the others are 0, forward and backward, in the chosen layers. The original FFN runs on the
same samples, and the interval of the difference is that of the paired jackknife.</p>
<h2 id="samples">Samples and prompt templates</h2>
<p><b>Choice</b>: samples are drawn at random from all rows of the data, <code>random.Random(seed).sample(range(rows), samples)</code> of
Python; the report lists the row of each, counted from 0. The first rows can be taken instead. Of Parquet only row groups with chosen rows
are read. Where those exceed {limits.DATASET_BYTES:,} bytes, or the data has more than 64 Parquet files, samples are chosen from a part of
the data that does not, and a note says so.</p>
<p><b>Templates</b>: <em>plain</em> is the instruction, its input on the next line, a blank line, the answer and the end of text;
<em>Alpaca</em> is the format of <a href="https://github.com/tatsu-lab/stanford_alpaca">Stanford Alpaca</a>, with or without an input;
<em>Alpaca, always with an input</em> has the input's heading also where it is empty; <em>chat</em> is the tokenizer's own chat template.
Automatic means chat where the tokenizer has a chat template, and plain otherwise. The loss is taken over the tokens with any character of
the answer, and the end of text; with the Alpaca templates, as in their training code, over all tokens after as many as the prompt alone
has.</p>
<p>The <b>published run</b> is of Llama-2-7b with k = 12.5% by gate in the last of its 32 layers, on 50 of the 52,002 rows of Alpaca drawn
with seed 10, every one with the template that has an input, not truncated, mean loss, in float32. The layers below the last see the same
forward pass and another gradient. A run is drawn next to it only if it has that setting.</p>
<h2 id="conflict-limits">What is run</h2>
<p>Models with safetensors weights and a causal language modelling head of a known family: Llama, Qwen, Mistral, Gemma, OLMo, Phi, GPT-2,
GPT-Neo, GPT-J, GPT-NeoX, OPT, BLOOM, Falcon, MPT, CodeGen, StarCoder, StableLM, SmolLM, Cohere, Granite, GLM-4, Nemotron, EXAONE, ERNIE,
Seed-OSS, HunYuan and others with layers like theirs; mixtures of experts (Mixtral, Qwen-MoE, OLMoE, Phi-MoE, Granite-MoE, GLM-4-MoE,
MiniMax-M2, DeepSeek-V2 and V3, gpt-oss); and hybrids, whose layers have a convolution, linear attention or a state space model next to
attention or instead of it (LFM2, Qwen3-Next, Qwen3.5, OLMo-Hybrid, Granite 4, Falcon-H1, Bamba): of those every FFN is measured, and
every attention projection. Latent attention has the projections q_a and kv_a to its narrow vectors and q_b and kv_b from
them; of gated attention the gate's rows are g. Another family is refused by name. Code of a repository is never run. What a
model needs and what this machine has is compared before anything is loaded; where there is too little memory to keep all activations, the
backward pass recomputes them. Samples of similar length are padded together on the right, and padding is dropped before the products.
At most {limits.CONFLICT_SAMPLES} samples of
{limits.CONFLICT_TOKENS:,} tokens; from the page at most {limits.WEB_MODEL_WORK / 1e12:g} trillion parameters &#215; tokens, on a GPU 300
times as many. The exact tokens are in the JSON, so that anyone can recompute the result.</p>
"""


def methods() -> str:
    """The text in HTML."""
    listed = {"neurons": limits.REPORT_NEURONS, "cosines": limits.NEURON_COSINES, "rows": limits.REPORT_TENSORS}
    return _CONFLICT + _WHOLE.format(**listed) + _TOPK
