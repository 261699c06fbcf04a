"""Top-k FFN: each token keeps the neurons with the largest scores; the others are 0 in the forward and backward pass.

Axes: T tokens, F neurons.
"""

import torch
from torch import Tensor

from analyzers.conflict.report import TopK
from analyzers.conflict.request import ConflictRequest, Selection
from analyzers.core.errors import InvalidRequest


class TopKMask:
    """Mask between the activation of an FFN and its down projection (`unit_gradients.Mask`); one mask serves all converted layers.

    select: the score that ranks neurons: gate (after its activation), up, |up|, the product gate x up, or its magnitude; without a gate,
    the activation is both gate and product. A token keeps the share ``width`` of the neurons (at least one) or, if ``total`` is given, the
    smallest set with that share of the sum of |score|.
    """

    def __init__(self, select: Selection, width: float, total: float | None) -> None:
        self._select = select
        self._width = width
        self._total = total
        self._kept = 0.0
        self._seen = 0.0

    @property
    def kept(self) -> float:
        """Mean share of the neurons kept, over real tokens (with experts, over those that each token is routed to)."""
        return self._kept / self._seen if self._seen else 1.0

    def __call__(self, gate: Tensor | None, up: Tensor, product: Tensor, real: Tensor) -> Tensor:
        """Return ``product`` (.., F) with 0 for neurons not kept. real: (..,), False for padding."""
        with torch.no_grad():
            keep = self._keep(self._score(gate, up, product))
            rows = keep[real.to(keep.device)]
            self._kept += float(rows.sum())
            self._seen += rows.numel()
        return torch.where(keep, product, torch.zeros((), dtype=product.dtype, device=product.device))

    def _score(self, gate: Tensor | None, up: Tensor, product: Tensor) -> Tensor:
        if self._select == "gate":
            return product if gate is None else gate
        score = up if self._select in ("up", "abs-up") else product
        return score.abs() if self._select.startswith("abs") else score

    def _keep(self, score: Tensor) -> Tensor:
        """Return the mask of neurons to keep; ties are broken by the neurons' order, so that every device keeps the same neurons."""
        width = score.shape[-1]
        ranked = torch.sort(score, dim=-1, descending=True, stable=True)
        if self._total is None:
            first = torch.arange(width, device=score.device) < max(1, round(self._width * width))
            first = first.expand(score.shape)
        else:
            size = ranked.values.abs().to(torch.promote_types(score.dtype, torch.float32))
            before = size.cumsum(-1) - size
            first = before < self._total * size.sum(-1, keepdim=True)
            first[..., 0] = True
        return torch.zeros_like(first).scatter(-1, ranked.indices, first)


def converted(request: ConflictRequest, layers: int) -> tuple[int, ...]:
    """Return the numbers of the layers to convert, in a model with ``layers`` layers. Raises InvalidRequest for a missing layer."""
    if request.topk_layers == "last":
        return (layers - 1,)
    if request.topk_layers == "all":
        return tuple(range(layers))
    first, _, last = request.topk_layers.partition("-")
    if int(last or first) >= layers:
        raise InvalidRequest(f"There is no layer {last or first}: the model has {layers}, counted from 0.")
    return tuple(range(int(first), int(last or first) + 1))


def described(request: ConflictRequest, layers: tuple[int, ...], mask: TopKMask) -> TopK | None:
    """Describe the top-k FFN for the report, after the run; None for the original FFN."""
    if request.ffn == "original":
        return None
    width = request.topk if request.topk_share is None else None
    return TopK(select=request.select, share_of_width=width, share_of_sum=request.topk_share, layers=layers, kept=mask.kept)
