"""The reference: the gradient itself, by the same code as the signals that are compared with it."""

from typing import ClassVar

from torch import Tensor

from analyzers.exit_feedback.heads.head import FeedbackHead
from analyzers.exit_feedback.heads.rows import Rows, Signal, weighted_rows


class ExactHead(FeedbackHead):
    """(dL/dy) W: backpropagation."""

    method: ClassVar[str] = "exact"

    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        """See FeedbackHead."""
        return lambda rows: rows.gradient @ weight


class TrueRowsHead(FeedbackHead):
    """sum over the gold token and those with the largest |logit gradient|, k in all, of dL/dy_v W_v: a ceiling of what k rows can give.

    With k = V it is the gradient.
    """

    method: ClassVar[str] = "true_rows"
    uses: ClassVar[tuple[str, ...]] = ("k",)
    reads_logits: ClassVar[bool] = True

    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        """See FeedbackHead."""
        k = self.settings.k

        def signal(rows: Rows) -> Tensor:
            return weighted_rows(weight, *rows.chosen(k))

        return signal
