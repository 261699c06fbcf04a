"""A variant's summary row, its log-probabilities, and the order of its tensors."""

import math
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor

from analyzers.precision.errors import Compared, Sums
from analyzers.precision.measurements import Kind, Logprobs, Summary, TensorError

_WITHIN = ("parameter_grad", "inside", "inside_grad")


def summary(compared: Sequence[Compared], layers: int, log_p: Tensor, reference: Tensor) -> Summary:
    """Summarize the errors. layers: their number in the model; log_p, reference: (S, L)."""
    d = _differences(log_p, reference)
    single = [tensor for tensor in compared if tensor.kind not in _WITHIN]
    errors = {(tensor.kind, tensor.layer): tensor.whole.rms_rel for tensor in single}
    mid, mid_max, mid_layer = _middle(errors, "hidden", layers)
    mid_bw, mid_max_bw, mid_layer_bw = _middle(errors, "hidden_grad", layers)
    return Summary(
        embeddings=errors.get(("hidden", -1)),
        mid_median=mid,
        mid_max=mid_max,
        mid_max_layer=mid_layer,
        logits=errors.get(("logits", None)),
        head=errors.get(("loss", None)),
        head_bw=errors.get(("hidden_grad", layers - 1)),
        logits_bw=errors.get(("logits_grad", None)),
        mid_median_bw=mid_bw,
        mid_max_bw=mid_max_bw,
        mid_max_bw_layer=mid_layer_bw,
        embeddings_bw=errors.get(("hidden_grad", -1)),
        parameters_bw=Sums.of(tensor.whole for tensor in compared if tensor.kind == "parameter_grad").rms_rel,
        logprob_mean=_finite(torch.mean, d.abs()),
        logprob_max=_finite(torch.max, d.abs()),
    )


def _middle(errors: dict[tuple[Kind, int | None], float | None], kind: Kind, layers: int) -> tuple[float | None, float | None, int | None]:
    """Median and maximum over the outputs of all decoder layers, and the layer of the maximum; None if one has no error."""
    values = [errors.get((kind, layer)) for layer in range(layers)]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None, None, None
    return median(known), max(known), known.index(max(known))


def logprobs(log_p: Tensor, reference: Tensor) -> Logprobs:
    """Compare log-probabilities. log_p, reference: (S, L)."""
    d = _differences(log_p, reference)
    ratios = d.expm1().abs()
    return Logprobs(bias=_finite(torch.mean, d), ratio_mean=_finite(torch.mean, ratios), ratio_max=_finite(torch.max, ratios))


def _differences(log_p: Tensor, reference: Tensor) -> Tensor:
    """Return the finite values of log p - log p of the reference, (n,) float64."""
    d = log_p.double() - reference.double()
    return d[torch.isfinite(d)]


def _finite(statistic: Callable[[Tensor], Tensor], values: Tensor) -> float | None:
    result = float(statistic(values)) if values.numel() else math.nan
    return result if math.isfinite(result) else None


def rows(compared: Sequence[Compared]) -> tuple[TensorError, ...]:
    """Return the rows of a table: tensors at the boundaries of layers first, in the order computed."""
    return tuple(tensor.row() for tensor in sorted(compared, key=lambda tensor: tensor.kind in _WITHIN))
