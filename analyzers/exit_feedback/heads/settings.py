"""What a head can be told, and the check that it fits the head."""

from dataclasses import dataclass

from analyzers.errors import InvalidRequest

_SEEDS, _BUCKETS = 1 << 63, 1 << 20
_LARGEST = 1e38


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """Settings of all methods; ``uses`` of a head names those that it reads. d: width of the hidden states, V: vocabulary.

    rank: columns of the random codes, or singular directions kept, 1 to d. k: tokens of a position that are taken one by one, by the size
    of their logit gradient, the gold one always among them, 1 to V. buckets: of the CountSketch that takes the others, 1 to 2^20. anchors:
    hidden states that span the projection; all there are, where there are fewer. residual: lambda, 0 or more, the weight of the random-code
    part orthogonal to h. alpha: scale of random codes, above 0; None is the root mean square of the norms of the head's rows. fresh: every
    call draws codes, expander and hashes anew, which is the null: a signal that nothing can learn to agree with.
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
        most = {"rank": (width, "the width of the hidden states"), "k": (vocabulary, "the vocabulary"), "buckets": (_BUCKETS, "the most")}
        for name in ("rank", "k", "buckets", "anchors"):
            value = getattr(self, name)
            if name not in uses:
                continue
            if type(value) is not int or value < 1:
                raise InvalidRequest(f"{name} must be a whole number of at least 1, not {shown(value)}.")
            if name in most and value > most[name][0]:
                raise InvalidRequest(f"{name} is above {most[name][1]}, {most[name][0]:,}: choose at most that.")
        if "residual" in uses and not (is_number(self.residual) and self.residual >= 0):
            raise InvalidRequest(f"residual must be a finite number, 0 or more, not {shown(self.residual)}.")
        if "alpha" in uses and self.alpha is not None and not (is_number(self.alpha) and self.alpha > 0):
            raise InvalidRequest(
                f"alpha must be a finite number above 0, or None for the size of the head's rows, not {shown(self.alpha)}."
            )
        if "seed" in uses and not (type(self.seed) is int and 0 <= self.seed < _SEEDS):
            raise InvalidRequest(f"seed must be a whole number from 0 to 2^63 - 1, not {shown(self.seed)}.")
        if "fresh" in uses and not isinstance(self.fresh, bool):
            raise InvalidRequest(f"fresh must be True or False, not {shown(self.fresh)}.")


def is_number(value: object) -> bool:
    """Whether it is a number, not a bool, that tensors of float32 hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def shown(value: object) -> str:
    """For a sentence, cut to what fits into it."""
    try:
        return repr(value)[:40]
    except ValueError:  # more digits than Python prints
        return "one so large"
