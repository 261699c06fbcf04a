"""Base class of all methods: a drop-in replacement for the linear head of a language model.

z = cap tanh(scale (h W^T + b) / cap). The backward pass gives W and b their exact gradients, and h the signal of the method in place of
(dL/dy) W. Axes: N tokens, d width, V vocabulary.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from analyzers.errors import InvalidRequest
from analyzers.exit_feedback.heads.autograd import SignalLogits, live_rows, signal_of_rows
from analyzers.exit_feedback.heads.fused import fused_cross_entropy
from analyzers.exit_feedback.heads.token_rows import Activation, SignalSource
from analyzers.exit_feedback.signals import HeadSettings, facts_of

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

Reduction = Literal["mean", "sum"]


class FeedbackHead(nn.Module, SignalSource):
    """A head whose hidden states get the signal of a ``method``. The state dict is that of a plain head: weight, bias."""

    method: ClassVar[str]

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        settings: HeadSettings | None = None,
        *,
        logit_scale: float = 1.0,
        softcap: float | None = None,
    ) -> None:
        """Build the head. weight: (V, d); bias: (V,).

        A Parameter is shared, so that tied embeddings stay tied; any other tensor is wrapped without a copy. Raises InvalidRequest for
        invalid shapes and dtypes, and for settings that do not fit the weight.
        """
        super().__init__()
        _check_weight(weight, bias)
        self.settings = (settings or HeadSettings()).resolved(self.method, *weight.shape)
        self.activation = Activation(logit_scale, softcap)
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
        self.register_parameter("bias", bias if bias is None or isinstance(bias, nn.Parameter) else nn.Parameter(bias))

        self.prepare()

    def prepare(self) -> None:
        """Prepare the method's own state. The constructor calls this after weight and settings are set."""

    def forward(self, h: Tensor) -> Tensor:
        """Compute logits (..., V) for h (..., d), bit-identical to the plain head's, also under autocast; differentiable once.

        Without targets, the token with the largest |dL/dz| counts as the gold token. If the backward pass reads the logits (with a softcap,
        hybrid, true_rows, the parallel methods), autograd refuses in-place changes of them.
        """
        h, weight, bias = self._cast(h)
        logits: Tensor = SignalLogits.apply(h, weight, bias, self)  # type: ignore[no-untyped-call]
        return logits

    def loss(self, h: Tensor, targets: Tensor, *, chunk: int = 512, reduction: Reduction = "mean", ignore_index: int = -100) -> Tensor:
        """Compute the cross-entropy (nats) of h (..., d) with targets (...), as in torch, with at most ``chunk`` rows of logits at a time.

        The loss is float32 at least. Ignored tokens have no effect, whatever their values. If all are ignored, the mean is NaN, as in
        torch, and all gradients are 0. Memory: a chunk of logits, h, its gradient, and W's gradient in float32 at least. Raises
        InvalidRequest for invalid arguments and for targets outside the vocabulary.
        """
        self._check_states(h)
        if targets.dtype not in _INTEGERS or targets.shape != h.shape[:-1]:
            raise InvalidRequest(
                f"Targets must be whole numbers of shape {tuple(h.shape[:-1])}, not {targets.dtype} of shape {tuple(targets.shape)}."
            )
        if type(chunk) is not int or chunk < 1:
            raise InvalidRequest(f"chunk must be a whole number of at least 1, not {chunk!r}.")
        if reduction not in ("mean", "sum"):
            raise InvalidRequest(f"reduction must be mean or sum, not {reduction!r}.")
        kind, mean = self._compute_type(h), reduction == "mean"
        return fused_cross_entropy(self, kind, h, self.weight, self.bias, targets, chunk, mean, ignore_index)

    @torch.no_grad()
    def signal(self, h: Tensor, g: Tensor, targets: Tensor | None = None) -> Tensor:
        """Compute the signal for h (..., d), in its dtype, from the gradient g (..., V) of a loss with respect to the logits of h.

        targets: (...), the gold tokens; a negative one stands for the token with the largest |g|. Tokens for which g is 0 get exactly 0.
        """
        h_type = h.dtype
        self._check_states(h)
        if g.shape != (*h.shape[:-1], len(self.weight)) or not g.is_floating_point():
            raise InvalidRequest(f"The gradient of the logits of {tuple(h.shape)} must end in {len(self.weight)}: it is {tuple(g.shape)}.")
        if targets is not None and targets.shape != h.shape[:-1]:
            raise InvalidRequest(f"Targets must have shape {tuple(h.shape[:-1])}, not {tuple(targets.shape)}.")
        if targets is not None and targets.numel() and int(targets.max()) >= len(self.weight):
            raise InvalidRequest(
                f"Target {int(targets.max())} is outside the vocabulary of {len(self.weight):,}: give -1 for an unknown token."
            )
        states, weight, bias = self._cast(h.reshape(-1, h.shape[-1]))
        gradient = g.reshape(len(states), len(weight))
        gold = None if targets is None else targets.reshape(-1).long()
        live = live_rows(gradient)
        with torch.autocast(h.device.type, enabled=False):
            signal = self.begin(weight, states, live, max(16, len(states)))
            y = linear(states, weight, bias) if self.reads_logits or self.activation.cap is not None else None
            feedback, _ = signal_of_rows(self, signal, states, gradient, y, bias, gold)
        return feedback.masked_fill(~live[:, None], 0).to(h_type).view(h.shape)

    def extra_repr(self) -> str:
        """Write the shape and the settings that the method reads, for ``repr``."""
        vocabulary, width = self.weight.shape
        return ", ".join([f"{width}, {vocabulary}", *(f"{name}={getattr(self.settings, name)}" for name in facts_of(self.method).uses)])

    def _compute_type(self, h: Tensor) -> torch.dtype:
        """Return the dtype of a linear map of h: autocast's if it is on. Raises InvalidRequest for mixed dtypes."""
        kind = h.device.type
        if torch.is_autocast_enabled(kind) and torch.float64 not in (h.dtype, self.weight.dtype):
            return torch.get_autocast_dtype(kind)
        if h.dtype != self.weight.dtype:
            raise InvalidRequest(f"The hidden states are {h.dtype} and the head {self.weight.dtype}: use one type, or autocast.")
        return h.dtype

    def _check_states(self, h: Tensor) -> None:
        if not h.is_floating_point() or not h.dim() or h.shape[-1] != self.weight.shape[1]:
            raise InvalidRequest(
                f"Hidden states must be floating and {self.weight.shape[1]} wide, not {h.dtype} of shape {tuple(h.shape)}."
            )

    def _cast(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Convert h, W and b to the dtype of the computation."""
        self._check_states(h)
        kind = self._compute_type(h)
        return h.to(kind), self.weight.to(kind), None if self.bias is None else self.bias.to(kind)


def _check_weight(weight: Tensor, bias: Tensor | None) -> None:
    if weight.dim() != 2 or 0 in weight.shape or not weight.is_floating_point() or weight.itemsize < 2:
        raise InvalidRequest(f"A head's weight must be a matrix of 16-bit floats or wider, not {weight.dtype} of {tuple(weight.shape)}.")
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != weight.dtype or bias.device != weight.device):
        raise InvalidRequest(
            f"A head's bias must be {weight.dtype} of shape ({len(weight)},), as its weight is, not {bias.dtype} of {tuple(bias.shape)}."
        )
