"""What the heads of all methods have in common: a drop-in for the linear head of a language model.

z = cap tanh(scale (h W^T + b) / cap). The way back gives W and b their exact gradient and h the signal of the method, in place of
(dL/dy) W. Axes: N tokens, d width, V vocabulary.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from analyzers.errors import InvalidRequest
from analyzers.exit_feedback.heads.activation import Activation
from analyzers.exit_feedback.heads.fused import fused_cross_entropy
from analyzers.exit_feedback.heads.rows import Signal
from analyzers.exit_feedback.heads.settings import HeadSettings
from analyzers.exit_feedback.heads.through import LogitsOf, feedback_of, live_rows

# Logits that `signal` computes at once, where a method needs them.
_NUMBERS = 1 << 23
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

Reduction = Literal["mean", "sum", "none"]


class FeedbackHead(nn.Module, ABC):
    """A head whose hidden states get the signal of a ``method``. Its state is that of the plain head: weight and, if any, bias.

    uses: the fields of HeadSettings that the method reads. random: it draws codes. reads_logits: it needs the logits beside their
    gradient, and so is asked for a few rows at a time, while both are there.
    """

    method: ClassVar[str]
    uses: ClassVar[tuple[str, ...]] = ()
    random: ClassVar[bool] = False
    reads_logits: ClassVar[bool] = False

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
        """weight: (V, d); bias: (V,). A Parameter is shared, so that tied embeddings stay tied; another tensor becomes one, uncopied.

        Raises InvalidRequest for other shapes and types, and for settings that do not fit them.
        """
        super().__init__()
        _check_weight(weight, bias)
        self.settings = settings or HeadSettings()
        self.settings.check(self.uses, *weight.shape)
        self.activation = Activation(logit_scale, softcap)
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
        self.register_parameter("bias", bias if bias is None or isinstance(bias, nn.Parameter) else nn.Parameter(bias))

    @abstractmethod
    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        """The signal for one call.

        weight: (V, d) in the type that the call computes in; h: (N, d), all hidden states; live: (N,) bool, the tokens that have a
        gradient; rows: rows of logits that it may compute at once.
        """

    def own_rows(self, chunk: int) -> int:
        """Of ``chunk`` rows of logits that may be there at once, how many the signal takes for itself."""
        return 0

    def forward(self, h: Tensor) -> Tensor:
        """Logits (..., V) of h (..., d), bit for bit those of the plain head, under autocast too; differentiable once.

        Without targets the gold token is taken for that with the largest |logit gradient|. An in-place change of the logits is refused
        by autograd where the way back reads them (a softcap, the ``parallel`` methods).
        """
        h, weight, bias = self._cast(h)
        logits: Tensor = LogitsOf.apply(h, weight, bias, self)  # type: ignore[no-untyped-call]
        return logits

    def loss(
        self,
        h: Tensor,
        targets: Tensor,
        *,
        chunk: int = 512,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        weight: Tensor | None = None,
    ) -> Tensor:
        """Cross-entropy (nats) of h (..., d) with targets (...), as torch's, of at most ``chunk`` rows of logits at a time.

        weight: of classes, (V,); "mean" divides by the sum over the tokens. The loss is float32 at least. Ignored tokens are left out
        altogether, so that what stands in them reaches nothing. Where all are ignored the mean is NaN, as torch's, and all gradients 0.
        Logits beside the chunk are computed nowhere; of other numbers there are h, its gradient, and that of W, float32 at least.
        Raises InvalidRequest for targets outside the vocabulary.
        """
        self._check_states(h)
        if targets.dtype not in _INTEGERS or targets.shape != h.shape[:-1]:
            raise InvalidRequest(
                f"Targets must be whole numbers of shape {tuple(h.shape[:-1])}, not {targets.dtype} of shape {tuple(targets.shape)}."
            )
        if type(chunk) is not int or chunk < 1:
            raise InvalidRequest(f"chunk must be a whole number of at least 1, not {chunk!r}.")
        if reduction not in ("mean", "sum", "none"):
            raise InvalidRequest(f"reduction must be mean, sum or none, not {reduction!r}.")
        if weight is not None and weight.shape != self.weight.shape[:1]:
            raise InvalidRequest(f"Class weights must have shape ({len(self.weight)},), not {tuple(weight.shape)}.")
        return fused_cross_entropy(self, self._compute_type(h), h, targets, chunk, reduction, ignore_index, weight)

    @torch.no_grad()
    def signal(self, h: Tensor, g: Tensor, targets: Tensor | None = None) -> Tensor:
        """The signal for h (..., d), in its type, of the gradient g (..., V) of a loss with respect to what ``forward`` gives for h.

        targets: (...), the gold tokens; below 0 where there is none, and by default taken for that with the largest |g|. The gradient of
        W is not computed; logits are where they are needed, some rows at a time. Tokens for which g is 0 get exactly 0.
        """
        h_type = h.dtype
        self._check_states(h)
        if g.shape != (*h.shape[:-1], len(self.weight)) or not g.is_floating_point():
            raise InvalidRequest(f"The gradient of the logits of {tuple(h.shape)} must end in {len(self.weight)}: it is {tuple(g.shape)}.")
        if targets is not None and targets.shape != h.shape[:-1]:
            raise InvalidRequest(f"Targets must have shape {tuple(h.shape[:-1])}, not {tuple(targets.shape)}.")
        if targets is not None and targets.numel() and int(targets.max()) >= len(self.weight):
            raise InvalidRequest(f"Target {int(targets.max())} is outside the vocabulary of {len(self.weight):,}: below 0 there is none.")
        states, weight, bias = self._cast(h.reshape(-1, h.shape[-1]))
        gradient = g.reshape(len(states), len(weight))
        gold = None if targets is None else targets.reshape(-1).long()
        live = live_rows(gradient)
        rows = max(16, _NUMBERS // len(weight))
        with torch.autocast(h.device.type, enabled=False):
            signal = self.begin(weight, states, live, rows)
            found = torch.zeros_like(states)
            for first in range(0, len(states), rows):
                here = slice(first, first + rows)
                y = linear(states[here], weight, bias) if self.reads_logits or self.activation.cap is not None else None
                known = None if gold is None else gold[here]
                found[here] = feedback_of(self, signal, states[here], gradient[here], y, bias, known)[0]
        return found.masked_fill_(~live[:, None], 0).to(h_type).view(h.shape)

    def extra_repr(self) -> str:
        """Shape, and the settings that the method reads."""
        vocabulary, width = self.weight.shape
        return ", ".join([f"{width}, {vocabulary}", *(f"{name}={getattr(self.settings, name)}" for name in self.uses)])

    def _compute_type(self, h: Tensor) -> torch.dtype:
        """What a linear map of h would be computed in, here: the type of autocast where it is on. Raises InvalidRequest for two types."""
        kind = h.device.type
        if torch.is_autocast_enabled(kind) and torch.float64 not in (h.dtype, self.weight.dtype):
            return torch.get_autocast_dtype(kind)
        if h.dtype != self.weight.dtype:
            raise InvalidRequest(f"The hidden states are {h.dtype} and the head {self.weight.dtype}: make them one type, or use autocast.")
        return h.dtype

    def _check_states(self, h: Tensor) -> None:
        if not h.is_floating_point() or not h.dim() or h.shape[-1] != self.weight.shape[1]:
            raise InvalidRequest(
                f"Hidden states must be floating and {self.weight.shape[1]} wide, not {h.dtype} of shape {tuple(h.shape)}."
            )

    def _cast(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """h, W and b in the type to compute in."""
        self._check_states(h)
        kind = self._compute_type(h)
        return h.to(kind), self.weight.to(kind), None if self.bias is None else self.bias.to(kind)


def _check_weight(weight: Tensor, bias: Tensor | None) -> None:
    if weight.dim() != 2 or 0 in weight.shape or not weight.is_floating_point() or weight.itemsize < 2:
        raise InvalidRequest(f"A head's weights must be a matrix of 16-bit floats or longer, not {weight.dtype} of {tuple(weight.shape)}.")
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != weight.dtype or bias.device != weight.device):
        raise InvalidRequest(
            f"A head's bias must be {weight.dtype} of shape ({len(weight)},), as its weights are, not {bias.dtype} of {tuple(bias.shape)}."
        )
