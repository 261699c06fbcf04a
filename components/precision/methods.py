"""The methods page, what concerns precision variants: every definition, its limits and its source."""

from analyzers import limits
from components.precision.names import PRESETS
from components.text.markup import table

_COMPARED = """
<h2 id="precision">Precision variants: what is compared</h2>
<p>The <b>reference</b> is the model run in fp32, forward and backward, with exact fp32 products (TF32 off). Each <b>variant</b> is the
same stored weights, run another way on the same tokens. At every layer boundary both are compared, element by element, with sums in
float64 and nothing sampled: hidden states (layer &#8722;1 is what enters the first layer), logits, the loss, the gradients of the loss
with respect to all of these, and the gradient of every parameter.</p>
<p><b>Error</b> is rms(x &#8722; ref) / rms(ref) over all elements of all sequences. Nothing is added to the denominator: a small constant
there, which test suites often have, makes the small gradients of early layers look exact. The spread is the smallest and the largest error
of a single sequence. Beside it: rms, largest difference, bias = mean(x &#8722; ref), and the least-squares fit x = a + b &#183; ref with
its slope b, correlation, and the rms of what it leaves. Numbers that are not finite are counted and left out of the sums; a layer that has
some is drawn at the upper edge of the figure. <b>Middle</b>: median and worst over the layers but the first boundary and the last.</p>
<p>By default a variant in bf16 also rounds weights that are stored in fp32, so that its error is that of both. <b>With the weights of the
reference rounded too</b>, each variant is compared with an fp32 run of its own rounded weights: what is left is the rounding of
computation. Plain rounding of normally distributed numbers has an error of 0.166% in bf16 and 0.021% in fp16, an eighth.</p>
"""

_VARIANTS = """
<h2 id="variants">Variants</h2>
<p>A variant is a name and settings: <code>name: dtype=bf16, fp32=residual+norms, attention=eager</code>. <b>dtype</b>: bf16, fp16, tf32 or
fp32, of weights and computation; with <b>autocast=true</b> weights stay in fp32 and torch.autocast chooses what runs in the narrow format.
<b>fp32</b>: parts kept in fp32, joined by +: residual (the sum that runs through the layers), lm_head (also where its weights are tied to
the embeddings), norms, router (of experts), softmax (attention between its projections). <b>attention</b>: eager, sdpa or flash.
<b>reductions</b>: full or reduced; whether a GPU may add up 16-bit products in 16 bits. <b>weights</b>: int8, fp8 or mxfp4, the linear maps
of the layers quantized and back, where torchao is installed. These have names:</p>
"""

_LOGPROBS = """
<h2 id="logprobs">Losses, log-probabilities and ratios</h2>
<p><b>Cross-entropy</b> is the mean over all predicted tokens. <b>GSPO</b> is the sequence-level policy gradient (Zheng et al., <a
href="https://arxiv.org/abs/2507.18071">arXiv 2507.18071</a>) without its clipping: the mean over sequences of &#8722;A &#183; exp(mean over
tokens of log p &#8722; log p of the reference), with advantages A that are given or drawn from a normal distribution. In fp16 the loss is
multiplied by the largest power of two that keeps all gradients finite, and gradients are divided by it again before they are compared.</p>
<p>With d = log p &#8722; log p of the reference for each predicted token, in nats: mean and largest |d|, bias = mean d, and the fit of one
on the other. A model that samples in one precision and learns in another sees an <b>importance ratio</b> where there should be none: of a
token exp(d), of a sequence exp(mean d); given are their distances from 1, and the share of sequences outside of 1 &#8722; 3e-4 to 1 + 4e-4,
where GSPO as published clips.</p>
<h2 id="headroom">Headroom</h2>
<p>log2(65504 / largest |x|) of each layer of the reference: of what the layer and the modules within it give, of the gradients with respect
to them and to the layer's parameters, and of its weights. Below 0 it overflows in fp16; a loss scale of 2<sup>k</sup> costs gradients k
bits. bf16 holds 3.39e38: 112 bits more. Headroom is that of the tokens which were run; other text may have larger numbers.</p>
"""

_LIMITS = f"""
<h2 id="precision-limits">What is run</h2>
<p>The same models as for gradient conflict. Text is cut into rows of one length, one after the other, so that nothing is padded; at most
{limits.PRECISION_SEQUENCES} sequences of {limits.PRECISION_TOKENS:,} tokens and {limits.PRECISION_VARIANTS} variants. Weights are loaded
once, in fp32; of each run at most one layer more, or {limits.PRECISION_KEPT_BYTES >> 20} MiB of its last layers, is held beside them and
the tensors of the reference. Random weights are drawn as the architecture does before training, by the seed. On a CPU products of 16-bit
numbers are added up in fp32, whatever the setting, and TF32 is fp32: errors of reduced-precision reductions show on a GPU only.</p>
"""


def methods() -> str:
    """The text in HTML."""
    presets = f'<div class="m-card">{table(("Variant", "What it is"), PRESETS.items())}</div>'
    return _COMPARED + _VARIANTS + presets + _LOGPROBS + _LIMITS
