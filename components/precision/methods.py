"""Precision variants on the methods page: every definition, its limits and its source."""

from analyzers import limits
from components.precision.names import CLIP, PRESETS
from components.text.markup import table

_COMPARED = """
<h2 id="precision">Precision variants: what is compared</h2>
<p>The <b>reference</b> is the model run in fp32, forward and backward, with exact fp32 products (TF32 off). Each <b>variant</b> runs the
same stored weights on the same tokens in another way. Compared at every layer boundary: hidden states (the output of each decoder layer; of
the last one before the final norm; layer &#8722;1 is the embedding output), logits, the loss, the loss gradients with respect to all of
these, and the gradient of every parameter. All elements enter, with sums in float64; nothing is sampled.</p>
<p><b>Error</b> (<code>rms_rel</code>) is rms(x &#8722; ref) / rms(ref) over all elements of all sequences. <b>Max error</b>
(<code>max_rel</code>) is max |x &#8722; ref| / rms(ref). Neither has an epsilon in the denominator: an epsilon of 1e-4, common in test
suites, makes the small gradients of early layers look exact. The range is that of single sequences. Also reported: rms,
max |x &#8722; ref|, bias = mean(x &#8722; ref), and the least-squares fit x = a + b &#183; ref with its slope b, correlation, and residual
rms. Values that are not finite are counted and left out of the sums; a layer that has some is drawn in the strip <i>overflow</i>.</p>
<p><b>Mid median</b> and <b>mid max</b> are the median and the maximum over the outputs of all decoder layers, the last included; only the
embedding output and the head are left out. Backward they are taken over the gradients with respect to the same outputs; <b>head</b> is the
gradient that enters the final norm, <b>first layer</b> the one that the first layer passes to the embeddings.</p>
<p>A variant in bf16 also rounds weights that are stored in fp32; its error then contains both. With <b>the reference's weights rounded
too</b>, each variant is compared with an fp32 run of its own rounded weights, which leaves the error of the computation alone. Rounding
normally distributed values gives an error of 0.166% in bf16 and 0.021% in fp16, an eighth.</p>
"""

_VARIANTS = """
<h2 id="variants">Variants</h2>
<p>A variant is a name and settings: <code>name: dtype=bf16, fp32=residual+norms, attention=eager</code>. <b>dtype</b>: bf16, fp16, tf32 or
fp32, of weights and computation; with <b>autocast=true</b> weights stay in fp32 and torch.autocast chooses what runs in the narrow format.
<b>fp32</b>: parts kept in fp32, joined by +: residual (the residual stream), lm_head (also where its weights are tied to the embeddings),
norms, router (of experts), softmax (attention between its projections). <b>attention</b>: eager, sdpa or flash. <b>reductions</b>: full or
reduced; whether a GPU may accumulate 16-bit products in 16 bits. <b>weights</b>: int8, fp8 or mxfp4, fake quantization of the layers'
linear maps, where torchao is installed. <code>bf16_max_precision</code> is the setting published under that name, residual stream and head
in fp32 and nothing else; <code>bf16_fp32_all_parts</code> is our own and keeps every part above in fp32. All presets:</p>
"""

_LOGPROBS = f"""
<h2 id="logprobs">Losses, log-probabilities and ratios</h2>
<p><b>Cross-entropy</b> is the mean over all predicted tokens. The policy gradients take an advantage A per sequence, given or drawn from a
normal distribution, and old log-probabilities, given or those of the reference, so that the reference's ratios are 1:</p>
<ul>
<li><b>GSPO</b> (Zheng et al., <a href="https://arxiv.org/abs/2507.18071">arXiv 2507.18071</a>, equation 5): the mean over sequences of
&#8722;min(s A, clip(s, 1 &#8722; low, 1 + high) A), where s = exp(mean over tokens of log p &#8722; log p<sub>old</sub>) =
(p(y)/p<sub>old</sub>(y))<sup>1/|y|</sup>. Published range: low {CLIP["gspo"][0]:g}, high {CLIP["gspo"][1]:g} (section 5.1).</li>
<li><b>GRPO</b> (Shao et al., <a href="https://arxiv.org/abs/2402.03300">arXiv 2402.03300</a>, equation 3): the mean over sequences of the
mean over tokens of &#8722;min(r A, clip(r, 1 &#8722; low, 1 + high) A), where r = p/p<sub>old</sub> of a token; without the KL penalty.
The paper names no range; the default is that of PPO (<a href="https://arxiv.org/abs/1707.06347">arXiv 1707.06347</a>), low
{CLIP["grpo"][0]:g}, high {CLIP["grpo"][1]:g}.</li>
</ul>
<p>A clipped ratio has no gradient; <b>clipped</b> is the share of sequences (GSPO) or tokens (GRPO) for which this happens. GSPO's range is
so narrow that rounding in bf16 can clip a sequence, whose gradients then have an error of 100%: with low 1 and high 1e6 nothing is
clipped. In fp16 the loss is multiplied by the largest power of two that keeps all gradients finite, which is undone before comparing.</p>
<p>With d = log p &#8722; log p of the reference for each predicted token, in nats: mean and maximum of |d|, bias = mean d, and the fit of
one on the other. Sampling in one precision and training in another gives an <b>importance ratio</b> other than 1: exp(d) for a token,
exp(mean d) for a sequence. Reported are the distances from 1, and the share of sequences outside GSPO's published range.</p>
<h2 id="headroom">Headroom</h2>
<p>log2(65504 / max |x|) of each layer of the reference: over the outputs of the layer and of the modules within it, over the gradients with
respect to these and to the layer's parameters, and over its weights. A layer overflows fp16 below 0; a loss scale of 2<sup>k</sup> costs
gradients k bits. bf16's limit is 3.39e38, 112 bits higher. Headroom is that of the tokens that ran; other text may have larger
values.</p>
"""

_LIMITS = f"""
<h2 id="precision-limits">What is run</h2>
<p>The same models as for gradient conflict. Text is cut into rows of equal length, so that nothing is padded: at most
{limits.PRECISION_SEQUENCES} sequences of {limits.PRECISION_TOKENS:,} tokens, and {limits.PRECISION_VARIANTS} variants. Weights are loaded
once, in fp32; a run holds in addition one layer's activations, or {limits.PRECISION_KEPT_BYTES >> 20} MiB of its last layers, and the
stored tensors of the reference. Random weights are initialized as the architecture does, by the seed. A CPU accumulates 16-bit products in
fp32 whatever the setting, and TF32 is fp32 there: errors of reduced-precision reductions show on a GPU only.</p>
"""


def methods() -> str:
    """The text in HTML."""
    presets = f'<div class="m-card">{table(("Variant", "Settings"), PRESETS.items())}</div>'
    return _COMPARED + _VARIANTS + presets + _LOGPROBS + _LIMITS
