"""A variant's summary row, its log-probabilities, and the gradient errors of each kind of parameter."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import torch
from torch import Tensor

from analyzers import limits
from analyzers.precision_variants.compare import Compared, Sums, sums
from analyzers.precision_variants.measurements import Kind, Logprobs, ParameterKind, Routing, Summary, TensorError
from analyzers.precision_variants.reductions import totals
from analyzers.precision_variants.request import CLIP

_IN_LAYER = re.compile(r".*?\.\d+\.(.+)")


def summary(compared: Sequence[Compared], layers: int, logprobs: Logprobs) -> Summary:
    """layers: their number in the model."""
    single = [tensor for tensor in compared if tensor.kind not in ("parameter_grad", "inside", "inside_grad")]
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
        first_layer_bw=errors.get(("hidden_grad", -1)),
        parameters_bw=Sums.of(tensor.whole for tensor in compared if tensor.kind == "parameter_grad").rms_rel,
        logprob_mean=logprobs.mean,
        logprob_max=logprobs.max,
    )


def _middle(errors: dict[tuple[Kind, int | None], float | None], kind: Kind, layers: int) -> tuple[float | None, float | None, int | None]:
    """Median and maximum over the outputs of all decoder layers, and the layer of the maximum; None if one has no error."""
    values = [errors.get((kind, layer)) for layer in range(layers)]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None, None, None
    return median(known), max(known), known.index(max(known))


def logprobs(log_p: Tensor, reference: Tensor) -> Logprobs:
    """log_p, reference: (S, L)."""
    d = (log_p.double() - reference.to(log_p.device).double()).cpu()
    sequence_means = d.mean(-1)
    d, sequence_means = d[torch.isfinite(d)], sequence_means[torch.isfinite(sequence_means)]
    rows = [(log_p.reshape(1, -1), reference.to(log_p.device).reshape(1, -1))]
    ((whole,),) = sums(rows, totals([(reference, None) for _, reference in rows]))
    fit = whole.fit()
    ratios, sequence_ratios = d.expm1().abs(), sequence_means.expm1()
    low, high = CLIP["gspo"]
    outside = (sequence_ratios < -low) | (sequence_ratios > high)
    return Logprobs(
        tokens=log_p.numel(),
        mean=_finite(torch.mean, d.abs()),
        max=whole.max,
        bias=whole.bias,
        slope=fit.slope,
        correlation=fit.correlation,
        ratio_mean=_finite(torch.mean, ratios),
        ratio_max=_finite(torch.max, ratios),
        sequence_ratio_mean=_finite(torch.mean, sequence_ratios.abs()),
        sequence_ratio_max=_finite(torch.max, sequence_ratios.abs()),
        outside_clip=_finite(torch.mean, outside.double()),
    )


def _finite(statistic: Callable[[Tensor], Tensor], values: Tensor) -> float | None:
    result = float(statistic(values)) if values.numel() else math.nan
    return result if math.isfinite(result) else None


def routing(chosen: Mapping[int, Tensor], reference: Mapping[int, Tensor]) -> Routing | None:
    """Compare the experts chosen for each token, (tokens, k) by layer; None without experts."""
    if not chosen:
        return None
    pairs = {layer: (chosen[layer].cpu(), reference[layer].cpu()) for layer in sorted(chosen)}
    elsewhere = [(one.sort(-1).values != other.sort(-1).values).any(-1) for one, other in pairs.values()]
    return Routing(
        tokens=len(elsewhere[0]),
        rerouted=int(torch.stack(elsewhere).any(0).sum()),
        layers=tuple(pairs),
        apart=tuple(layer for layer, pair in pairs.items() if not torch.equal(*pair)),
    )


def parameter_kinds(compared: Sequence[Compared]) -> tuple[ParameterKind, ...]:
    """Parameter gradients by kind, in the order of the model."""
    kinds: dict[str, list[Compared]] = {}
    gradients = [tensor for tensor in compared if tensor.kind == "parameter_grad"]
    for gradient in sorted(gradients, key=lambda tensor: -1 if tensor.layer is None else tensor.layer):
        kinds.setdefault(kind_of(gradient), []).append(gradient)
    return tuple(_kind(kind, members) for kind, members in kinds.items())


def kind_of(parameter: Compared) -> str:
    """The parameter's name within its layer, or its full name outside layers."""
    inside = _IN_LAYER.fullmatch(parameter.name) if parameter.layer is not None else None
    return inside[1] if inside else parameter.name


def _kind(kind: str, members: Sequence[Compared]) -> ParameterKind:
    whole = Sums.of(member.whole for member in members)
    errors = [(error, member.name) for member in members if (error := member.whole.rms_rel) is not None]
    worst, name = max(errors, default=(None, None))
    return ParameterKind(
        kind=kind,
        tensors=len(members),
        elements=whole.elements,
        rms_rel=whole.rms_rel,
        worst=worst,
        worst_name=name,
        nonfinite=whole.nonfinite,
    )


def rows(compared: Sequence[Compared]) -> tuple[TensorError, ...]:
    """The rows of the report; where these would be too many, the parameters of each layer are pooled."""
    if len(compared) <= limits.REPORT_TENSORS:
        return tuple(tensor.row() for tensor in compared)
    pooled: dict[int | None, Sums] = {}
    for tensor in compared:
        if tensor.kind == "parameter_grad":
            pooled[tensor.layer] = Sums.of([pooled.get(tensor.layer, Sums()), tensor.whole])
    others = [tensor for tensor in compared if tensor.kind != "parameter_grad"]
    names = {layer: "other parameters" if layer is None else f"parameters of layer {layer}" for layer in pooled}
    parameters = [Compared("parameter_grad", names[layer], layer, None, [whole]) for layer, whole in pooled.items()]
    return tuple(tensor.row() for tensor in [*others, *parameters])
