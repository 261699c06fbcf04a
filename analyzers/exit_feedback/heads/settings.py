"""What a head can be told, and the check that it fits the head."""

import math
from dataclasses import dataclass

from analyzers.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """Settings of all methods; ``uses`` of a head names those that it reads. d: width of the hidden states, V: vocabulary.

    rank: columns of the random codes, or singular directions kept, 1 to d. k: tokens of a position that are taken one by one, by the size
    of their logit gradient, the gold one always among them, 1 to V. buckets: of the CountSketch that takes the others. anchors: hidden
    states that span the projection; all there are, where there are fewer. residual: lambda, the weight of the random-code part
    orthogonal to h. alpha: scale of random codes; None is the root mean square of the norms of the head's rows. fresh: every call draws
    codes, expander and hashes anew, which is the null: a signal that nothing can learn to agree with.
    """

    rank: int = 128
    k: int = 16
    buckets: int = 512
    anchors: int = 64
    residual: float = 1.0
    alpha: float | None = None
    seed: int = 0
    fresh: bool = False

    def check(self, uses: tuple[str, ...], vocabulary: int, width: int) -> None:
        """Raise InvalidRequest where a setting that the method ``uses`` does not fit a head of that vocabulary and width."""
        most = {"rank": (width, "the width of the hidden states"), "k": (vocabulary, "the vocabulary")}
        for name in ("rank", "k", "buckets", "anchors"):
            value = getattr(self, name)
            if name not in uses:
                continue
            if type(value) is not int or value < 1:
                raise InvalidRequest(f"{name} must be a whole number of at least 1, not {value!r}.")
            if name in most and value > most[name][0]:
                raise InvalidRequest(f"{name} is {value:,}, above {most[name][1]}, {most[name][0]:,}: choose at most that.")
        for name in ("residual", "alpha"):
            value = getattr(self, name)
            if value is None and name == "alpha":
                continue
            if name in uses and not (isinstance(value, int | float) and math.isfinite(value)):
                raise InvalidRequest(f"{name} must be a finite number, not {value!r}.")
        if "seed" in uses and type(self.seed) is not int:
            raise InvalidRequest(f"seed must be a whole number, not {self.seed!r}.")
