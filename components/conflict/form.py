"""Turns the conflict form into a request, a request into a link and a command, and pasted text into pairs."""

import json
from collections.abc import Iterator
from typing import Any

from analyzers.core import limits
from analyzers.core.errors import InvalidData, LimitExceeded
from analyzers.core.untrusted_json import InvalidJson, parse_json
from analyzers.gradient_conflict import TOPK_OPTIONS, ConflictRequest
from analyzers.language_models.instruction_data import pair_of
from components.forms import form as forms
from components.forms.form import Query, Typed

ABOUT = (
    "How often training samples pull the same neuron of a model in opposite directions, as JSON: conflict rates by layer and block with "
    "intervals, cosines between samples, dominance, batch sizes, activation, the most and least conflicted neurons, and on request a "
    "comparison with a top-k FFN."
)
COST = forms.Cost(
    "fewer or shorter samples, a smaller model",
    lambda request: (1 if request.ffn == "original" else 2) * request.samples * request.max_length,
)
PAIRS = "pairs"
_CHARACTERS = limits.CONFLICT_SAMPLES * limits.PAIR_CHARACTERS


def request(form: Typed) -> ConflictRequest:
    """Validate what is typed as a request. All given pairs are run, unless ``samples`` sets their number.

    Raises InvalidRequest with the sentence to show, InvalidData or LimitExceeded for pairs.
    """
    model = forms.one_model(form.get("model"), "Samples are compared in one model at a time: name one.")
    pairs = pasted(forms.typed(form.get("pairs"))) if form.get("data") == PAIRS else None
    if pairs and not forms.typed(form.get("samples")).strip():
        form = {**form, "samples": str(max(2, len(pairs)))}
    return forms.validated(ConflictRequest, form, model=model, data=forms.data(form), pairs=pairs)


def filled(query: Query) -> Typed:
    """Return the values that a query fills in."""
    own = {"pairs": dict(query)["pairs"], "data": PAIRS} if "pairs" in dict(query) else {}
    return forms.queried(query, ConflictRequest) | own


def permalink(request: ConflictRequest) -> str:
    """Return the query that makes the same request. Pairs that are too long for it are omitted."""
    if not request.pairs:
        return forms.permalink(request)
    text = lines(pair.model_dump(exclude_defaults=True) for pair in request.pairs)
    return forms.permalink(request, pairs=[("pairs", forms.linked(text))], samples=[("samples", str(request.samples))])


def command(request: ConflictRequest) -> str:
    """Return the shell command for the same analysis, for which given pairs must be saved as pairs.jsonl first."""
    idle = TOPK_OPTIONS if request.ffn != "topk" else ()  # the command refuses these options without a top-k FFN
    pairs = {"data": ("--data=pairs.jsonl",)} if request.pairs else {}
    return forms.command(request, **pairs, **dict.fromkeys(idle, ()))


def pasted(text: str) -> tuple[dict[str, str], ...]:
    """Parse the pairs in ``text``, each with instruction, input and output.

    A line is a JSON object with any of the fields that a file of instruction data may have, or an instruction and its answer separated by
    a tab (or instruction, input and answer). The text may also be one JSON list. Raises InvalidData, naming the line, for anything else;
    LimitExceeded for too many pairs or too much text.
    """
    if len(text) > _CHARACTERS:
        raise LimitExceeded(f"{len(text):,} characters of pairs are more than {_CHARACTERS:,}, all samples together.")
    pairs: list[dict[str, str]] = []
    for where, row in _rows(text):
        if len(pairs) == limits.CONFLICT_SAMPLES:
            raise LimitExceeded(f"There are more than {limits.CONFLICT_SAMPLES} pairs, the most that are compared: paste fewer.")
        pair = pair_of(row, where)
        pairs.append({"instruction": pair.instruction, "input": pair.input, "output": pair.output})
    if not pairs:
        raise InvalidData("Paste at least 2 pairs: one per line, instruction and answer separated by a tab, or as JSON.")
    return tuple(pairs)


def lines(rows: Any) -> str:
    """Write pairs as JSON, one per line, as `pasted` reads them."""
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)


def _rows(text: str) -> Iterator[tuple[str, Any]]:
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("["):
        yield from ((f"entry {number} of the pairs", row) for number, row in enumerate(_parsed(text, "the list of pairs"), start=1))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"line {number} of the pairs"
            yield where, _parsed(line, where) if line.lstrip().startswith("{") else _columns(line, where)


def _parsed(text: str, where: str) -> Any:
    try:
        return parse_json(text)
    except InvalidJson as error:
        raise InvalidData(f"{where[:1].upper()}{where[1:]} {error}: check its quotes, commas and braces.") from None


def _columns(line: str, where: str) -> dict[str, str]:
    cells = [cell.strip() for cell in line.rstrip("\r").split("\t")]
    if len(cells) not in (2, 3):
        tabs = "no tab" if len(cells) == 1 else f"{len(cells) - 1} tabs"
        raise InvalidData(
            f"{where[:1].upper()}{where[1:]} has {tabs}: write an instruction and its answer separated by a tab, or a JSON object."
        )
    return {"instruction": cells[0], "input": cells[1] if len(cells) == 3 else "", "output": cells[-1]}
