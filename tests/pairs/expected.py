"""What is right for each kind (DESIGN 5.6): verdicts, and relations of the tensors that differ. All other tensors are ``equal``."""

from typing import NamedTuple

DERIVED, SAME, COPY = {"derived"}, {"same-weights"}, {"quantized-copy"}
MERGE, STACK, NONE = {"merge"}, {"stack"}, {"unrelated", "undecided"}


class Expected(NamedTuple):
    """What a report must say.

    verdicts: any of them is right. relation: of the tensors of X that differ from P_1; None if there is none to expect (merges).
    to: the format of ``rounded``. factor, offset: of ``affine``. by_name: whether sparsity compares tensors of the same names.
    direction: whether the values show which checkpoint came last.
    """

    verdicts: set[str]
    relation: set[str] | None
    to: str | None = None
    factor: float | None = None
    offset: float | None = None
    by_name: bool = True
    direction: bool = False


KINDS = {
    "equal": Expected(SAME, set()),
    "to-fp32": Expected(SAME, set()),
    "to-bf16": Expected(SAME, {"rounded"}, to="bf16", direction=True),
    "to-fp16": Expected(SAME, {"rounded"}, to="fp16", direction=True),
    "through-and-back": Expected(SAME, {"rounded"}),
    "masters": Expected(SAME, {"rounded"}),
    "tuned-little": Expected(DERIVED, {"changed"}),
    "tuned": Expected(DERIVED, {"changed"}),
    "tuned-long": Expected(DERIVED, {"changed"}),
    "tuned-sparsely": Expected(DERIVED, {"changed"}),
    "tuned-by-rows": Expected(DERIVED, {"changed"}),
    "tuned-in-part": Expected(DERIVED, {"changed"}),
    "from-one-start": Expected(DERIVED, {"changed"}),
    "pruned": Expected(DERIVED, {"changed"}, direction=True),
    "times-a-constant": Expected(DERIVED, {"affine"}),
    "times-a-constant-per-block": Expected(DERIVED, {"affine"}),
    "norms-plus-one": Expected(DERIVED | SAME, {"affine"}, factor=1, offset=1),
    "norms-minus-one": Expected(DERIVED | SAME, {"affine"}, factor=1, offset=-1),
    "rows-shifted": Expected(DERIVED | SAME, {"reordered"}),
    "all-rows-shifted": Expected(DERIVED | SAME, {"reordered"}),
    "neurons-permuted": Expected(DERIVED | SAME, {"reordered"}),
    "heads-permuted": Expected(DERIVED | SAME, {"reordered"}),
    # Rows that alternate are also a declared form, in which the values are equal.
    "halves-interleaved": Expected(DERIVED | SAME, {"reordered", "equal"}, by_name=False),
    "first-quarter": Expected(DERIVED, {"truncated"}),
    "first-quarter-then-zeros": Expected(DERIVED, {"truncated"}),
    "values-of-another-tensor": Expected(DERIVED, {"other"}),
    "zeroed": Expected(DERIVED, {"zero"}),
    "constant": Expected(DERIVED, {"constant"}),
    "every-second-row-nan": Expected(DERIVED, {"non-finite"}),
    "int8": Expected(COPY, {"rounded"}, direction=True),
    "int4": Expected(COPY, {"rounded"}, direction=True),
    "unrelated": Expected({"unrelated"}, {"other"}),
    "linear": Expected(MERGE, None, direction=True),
    "mean": Expected(MERGE, None),
    "linear-of-three": Expected(MERGE, None),
    "linear-by-layer": Expected(MERGE, None),
    "task-arithmetic": Expected(MERGE, None),
    "slerp-0.4": Expected(MERGE, None),
    "slerp-0.6": Expected(MERGE, None),
    "ties": Expected(MERGE, None),
    "dare": Expected(MERGE, None),
    "mean-of-fp32-masters": Expected(MERGE, None),
    "stack-of-two": Expected(STACK, {"equal"}),
    "stack-of-two-repeated": Expected(STACK, {"equal"}, by_name=False),
    "stack-of-repeated-layers": Expected(STACK, {"equal"}, by_name=False),
    "stack-of-fewer-layers": Expected(STACK, {"equal"}, by_name=False),
    "mixture-of-versions": Expected(STACK, {"equal"}),
}

# Structure that unrelated models share: the verdict alone.
SHARED = Expected(NONE, None)


def expected(kind: str) -> Expected:
    return SHARED if kind.startswith("shared-") else KINDS[kind]
