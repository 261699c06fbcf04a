"""The sparsity section of the methods page: every definition, its limits and its source."""

from analyzers import limits
from analyzers.update_sparsity.published import SOURCE
from analyzers.update_sparsity.report import DEFAULT_ETA
from analyzers.update_sparsity.rows import TOPS
from analyzers.update_sparsity.spectral import LEADING, MASK_SHARE
from components.text import numbers

_CHANGED = f"""
<h2 id="sparsity">Update sparsity: changed or not</h2>
<p>A weight is <b>changed</b> when its two values, each rounded to bf16 (to nearest, ties to even, straight from the stored dtype),
differ as numbers: +0 is &#8722;0, a NaN equals any NaN, an infinity only itself. Sparsity is 1 &#8722; changed / compared over all
weights that both checkpoints have. It is the share that looks the same to whoever runs the model in bf16, and a statement about two
files: which updates an optimizer made and undid again, no file tells.</p>
<p>Means over tensors and the sparsity of a role are different numbers: the sparsity of a role is that of all its weights together; its
mean, least and most are of its tensors, large and small alike.</p>
<h2 id="probe">The probe</h2>
<p>The measure of the paper: a weight is unchanged when |v &#8722; w| &#8804; &#951; max(|w|, |v|), of the stored values in float64,
with &#951; = {DEFAULT_ETA:g} unless you say otherwise; pairs with a NaN or an infinity are changed where they differ. Two different
finite bf16 values are at least {numbers.power(-8)} of the larger apart, so for checkpoints stored in bf16 probe and <em>changed</em>
agree for every &#951; below that. For fp32 they do not: an update of 5e-4 of a weight is nothing to the probe, yet tips the rounding to
bf16 of about one weight in ten. Both are shown, and where they are different questions the report says so. Source: <a
href="{SOURCE}">Zhu et al., The Path Not Taken, arXiv 2511.08567</a>, Definitions 2.1 and 2.2; its Table 1 is the table of published
fine-tunes.</p>
<h2 id="swallowed">Updates lost to bf16 rounding</h2>
<p>An update is <b>lost to rounding</b> (<code>swallowed</code> in the JSON) when the stored values differ and their bf16 values do not:
it exists in the file and not in the model that runs in bf16. Of checkpoints stored in bf16 there is none, by construction. Where the two
sides are stored in different dtypes, values that differ only as stored are conversions, and the tile says that it cannot tell.</p>
"""

_AMOUNTS = f"""
<h2 id="amounts">How much</h2>
<p>Absolute updates are |v &#8722; w|, relative ones |v &#8722; w| / max(|w|, |v|) and 0 where both are 0, over every pair of finite
values and over the changed ones. Mean, standard deviation and largest are exact but for the last digits; the smallest and the percentiles
come from bins of 128 to a binade, 0.8% wide, so that they are off by less than 1%; where nothing changed they are 0.
{numbers.power(-8)} and {numbers.power(-7)} are edges of bins: the shares below them are exact. Neighbouring bf16 values are
{numbers.power(-8)} to {numbers.power(-7)} of their size apart, depending on where in its binade a value lies. Histograms do not depend on
the order in which weights arrive or on the number of threads.</p>
<p><b>bf16 ULPs</b>: the number of bf16 steps from one value to the other, counted across zero; +0 and &#8722;0 are the same. <b>Sum
of squares</b>: what share of &#8721;(v &#8722; w)&#178; the largest {", ".join(f"{100 * top:g}%" for top in TOPS)} of all compared
coordinates hold, from the bins of the absolute updates. <b>Changed rows and columns</b>: the share of a matrix's rows and columns with
at least one change, in exact mode.</p>
"""

_MATCHING = f"""
<h2 id="matching">What is compared with what</h2>
<p>Tensors are matched by name; then, where a name is left over on both sides, by what remains of it without what programs put before it
(<code>model.</code>, <code>language_model.</code>, <code>module.</code>, wrappers of FSDP and torch.compile and the like), one way for
the whole checkpoint: such pairs are listed as renamed. Embeddings and heads with another number of rows are compared in the rows both
have. What is missing, extra, of another shape, transposed or no plain float is listed and left out, never silently: the head of the
result says how much was compared. A head that repeats the input embedding counts once. Buffers (masks, rotary frequencies, running
statistics) are no parameters. Files may be cut, sorted, stored and formatted differently on the two sides.</p>
<h2 id="trajectory">Several checkpoints</h2>
<p>Each tuned checkpoint is compared with the base and with the one before it, over the weights that the base has too. The overlap of
two is the Jaccard index of the weights each changed against the base: both / either. If the two changed shares p and q of the weights
with nothing to do with each other, it would be pq / (p + q &#8722; pq): that stands beside it. At most {limits.TRAJECTORY} are compared
with one base.</p>
<h2 id="sparsity-quick">Quick mode of sparsity</h2>
<p>The same places are read of every checkpoint. Shares are estimates for all compared weights with 95% intervals, made as described
under <a href="#quick">quick and exact mode</a>; counts, magnitudes, norms and histograms are of what was read. Changes come in clusters
(rows of an embedding that never occurred, frozen layers), which the intervals allow for: blocks are the independent units, never single
weights.</p>
"""

_SPECTRAL = f"""
<h2 id="spectral">Singular values and subspaces</h2>
<p>On request, of up to {limits.SPECTRAL_MATRICES} matrices spread over layers and roles, read whole. Of a base W, a tuned W<sup>+</sup>
and D = W<sup>+</sup> &#8722; W, in float64: <b>stable rank</b> &#8214;D&#8214;<sub>F</sub>&#178; / &#8214;D&#8214;<sub>2</sub>&#178;;
<b>effective rank</b> exp(&#8722;&#8721; p ln p) of the normalised singular values p of D; <b>spectral drift</b> (NSS)
&#8214;s(W<sup>+</sup>) &#8722; s(W)&#8214; / &#8214;s(W)&#8214; over sorted singular values; <b>principal angles</b> between the
leading k left, and right, singular subspaces of W and W<sup>+</sup>, k a tenth of the shorter side and at most {LEADING};
<b>overlaps</b>: the share of the changed elements that lie in the principal mask (the largest entries of W's best approximation of rank
k) and in the low-magnitude mask (the smallest entries of W), each {100 * MASK_SHARE:g}% of the elements, which is what chance alone
would give. Sources: Zhu et al. as above; Roy and Vetterli, EUSIPCO 2007, for the effective rank.</p>
"""


def methods() -> str:
    """The text in HTML."""
    return _CHANGED + _AMOUNTS + _MATCHING + _SPECTRAL
