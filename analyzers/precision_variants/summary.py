"""From the tensors of a variant to its row in the summary, its log-probabilities, and the errors of each kind of parameter."""

import re
from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor

from analyzers import limits
from analyzers.precision_variants.compare import Sums, sums
from analyzers.precision_variants.reference import Compared
from analyzers.precision_variants.report import Kind, Logprobs, ParameterKind, Summary, TensorError

# Outside of it GSPO clips a sequence's ratio (arXiv 2507.18071, section 5.1).
GSPO_CLIP = (1 - 3e-4, 1 + 4e-4)
_IN_LAYER = re.compile(r".*?\.\d+\.(.+)")


def summary(found: Sequence[Compared], layers: int, logprobs: Logprobs) -> Summary:
    """layers: of the model."""
    errors = {(each.kind, each.layer): each.whole.rms_rel for each in found if each.kind not in ("parameter_grad", "inside", "inside_grad")}
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
        parameters_bw=Sums.merged([each.whole for each in found if each.kind == "parameter_grad"]).rms_rel,
        logprob_mean=logprobs.mean,
        logprob_max=logprobs.max,
    )


def _middle(errors: dict[tuple[Kind, int | None], float | None], kind: Kind, layers: int) -> tuple[float | None, float | None, int | None]:
    """Median and maximum over the layers between the first and the last boundary, and where the maximum is; null if one has no error."""
    values = [errors.get((kind, layer)) for layer in range(layers - 1)]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None, None, None
    return median(known), max(known), known.index(max(known))


def logprobs(log_p: Tensor, reference: Tensor) -> Logprobs:
    """log_p, reference: (S, L)."""
    d = (log_p.double() - reference.to(log_p.device).double()).cpu()
    of_sequences = d.mean(-1)
    d, of_sequences = d[torch.isfinite(d)], of_sequences[torch.isfinite(of_sequences)]
    whole = sums(log_p, reference)
    fit = whole.fit()
    ratios, of_sequences = d.expm1().abs(), of_sequences.expm1()
    outside = (of_sequences < GSPO_CLIP[0] - 1) | (of_sequences > GSPO_CLIP[1] - 1)
    return Logprobs(
        tokens=log_p.numel(),
        mean=_mean(d.abs()),
        max=whole.max,
        bias=whole.bias,
        slope=fit.slope if fit else None,
        correlation=fit.correlation if fit else None,
        ratio_mean=_mean(ratios),
        ratio_max=_largest(ratios),
        sequence_ratio_mean=_mean(of_sequences.abs()),
        sequence_ratio_max=_largest(of_sequences.abs()),
        outside_clip=_mean(outside.double()),
    )


def _mean(values: Tensor) -> float | None:
    return _finite(values.mean()) if values.numel() else None


def _largest(values: Tensor) -> float | None:
    return _finite(values.max()) if values.numel() else None


def _finite(value: Tensor) -> float | None:
    return float(value) if torch.isfinite(value) else None


def parameter_kinds(found: Sequence[Compared]) -> tuple[ParameterKind, ...]:
    """Parameter gradients by kind, in the order in which kinds come first in the model."""
    kinds: dict[str, list[Compared]] = {}
    for each in sorted(
        (each for each in found if each.kind == "parameter_grad"), key=lambda each: -1 if each.layer is None else each.layer
    ):
        kinds.setdefault(kind_of(each), []).append(each)
    return tuple(_kind(kind, members) for kind, members in kinds.items())


def kind_of(parameter: Compared) -> str:
    """The name within its layer, or the whole name outside of layers."""
    inside = _IN_LAYER.fullmatch(parameter.name) if parameter.layer is not None else None
    return inside[1] if inside else parameter.name


def _kind(kind: str, members: Sequence[Compared]) -> ParameterKind:
    whole = Sums.merged([each.whole for each in members])
    errors = [(error, each.name) for each in members if (error := each.whole.rms_rel) is not None]
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


def rows(found: Sequence[Compared]) -> tuple[TensorError, ...]:
    """Of the report: all, or with the parameters of a layer pooled where there would be too many."""
    if len(found) <= limits.REPORT_TENSORS:
        return tuple(each.row() for each in found)
    pooled: dict[int | None, Compared] = {}
    for each in found:
        if each.kind == "parameter_grad":
            name = "other parameters" if each.layer is None else f"parameters of layer {each.layer}"
            pooled.setdefault(each.layer, Compared(each.kind, name, each.layer, [Sums()])).parts[0].merge(each.whole)
    others = [each for each in found if each.kind != "parameter_grad"]
    return tuple(each.row() for each in [*others, *pooled.values()])
