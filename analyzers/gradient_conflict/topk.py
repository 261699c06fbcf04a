"""A top-k FFN: each token keeps the neurons with the largest score; the others are 0, forward and backward.

Axes: T tokens, F neurons.
"""

import torch
from torch import Tensor

from analyzers.errors import InvalidRequest
from analyzers.gradient_conflict.report import TopK
from analyzers.gradient_conflict.request import ConflictRequest, Selection


class TopKMask:
    """The mask between the activation of an FFN and its map down, as `capture.run` calls it; one for all converted layers.

    select: the score, largest first: of gate (after its activation), up, |up|, their product or its magnitude; without a gate the
    activation is gate and product. A token keeps the share ``width`` of the neurons (at least one) or, with ``total``, as few as hold that
    share of the sum of |score|. counting: (N,), the tokens of a batch over which ``kept`` is a mean.
    """

    def __init__(self, select: Selection, width: float, total: float | None, counting: Tensor) -> None:
        self._select = select
        self._width = width
        self._total = total
        self._counting = counting
        self._kept = 0.0
        self._seen = 0.0

    @property
    def kept(self) -> float:
        """Mean share of the neurons kept, over those tokens (with experts, over the experts each is routed to)."""
        return self._kept / self._seen if self._seen else 1.0

    def __call__(self, gate: Tensor | None, up: Tensor, product: Tensor, tokens: Tensor | None) -> Tensor:
        """(.., F) each -> product, 0 where a neuron is not kept. tokens: of each row, None for all in order."""
        with torch.no_grad():
            keep = self._keep(self._score(gate, up, product))
            counting = self._counting.to(keep.device)
            rows = keep.flatten(0, -2)[counting if tokens is None else counting[tokens]]
            self._kept += float(rows.sum())
            self._seen += rows.numel()
        return torch.where(keep, product, torch.zeros((), dtype=product.dtype, device=product.device))

    def _score(self, gate: Tensor | None, up: Tensor, product: Tensor) -> Tensor:
        if self._select == "gate":
            return product if gate is None else gate
        score = up if self._select in ("up", "abs-up") else product
        return score.abs() if self._select.startswith("abs") else score

    def _keep(self, score: Tensor) -> Tensor:
        """Ties are broken by the neurons' order, so that the same number is kept on every device."""
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
    """Numbers of the layers with a top-k FFN, of a model with ``layers``. Raises InvalidRequest for a layer that it does not have."""
    if request.topk_layers == "last":
        return (layers - 1,)
    if request.topk_layers == "all":
        return tuple(range(layers))
    first, _, last = request.topk_layers.partition("-")
    if int(last or first) >= layers:
        raise InvalidRequest(f"There is no layer {last or first}: the model has {layers}, counted from 0.")
    return tuple(range(int(first), int(last or first) + 1))


def described(request: ConflictRequest, layers: tuple[int, ...], mask: TopKMask) -> TopK:
    """For the report, after the run."""
    width = request.topk if request.topk_share is None else None
    return TopK(select=request.select, share_of_width=width, share_of_sum=request.topk_share, layers=layers, kept=mask.kept)
