"""The conflict form: as typed, as a request, as a link, and as a command; and pairs as pasted."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from analyzers import limits
from analyzers.errors import InvalidData, LimitExceeded
from analyzers.gradient_conflict import ConflictRequest
from analyzers.language_models.data import pair_of
from analyzers.outside_json import InvalidJson, parse_json
from components.forms import form as forms

ABOUT = (
    "How often training samples pull the same neuron of a model in opposite directions, as JSON: conflict rates by layer and block with "
    "intervals, cosines between samples, dominance, batch sizes, activation, the most and least conflicted neurons, and on request a "
    "comparison with a top-k FFN."
)
# Of the endpoint, in this order.
PARAMETERS = (
    "model", "data", "pairs", "samples", "max_length", "unit", "ffn", "topk", "topk_share", "topk_layers", "select", "loss", "gamma",
    "floor", "epsilon", "weights", "dtype", "attention", "checkpointing", "seed", "choice", "template",
)  # fmt: skip
COST = forms.Cost(
    "fewer or shorter samples, a smaller model",
    lambda request: (1 if request.ffn == "original" else 2) * request.samples * request.max_length,
)
PAIRS = "pairs"
# In the order of the command line.
OPTIONS = (
    "samples", "choice", "template", "max_length", "loss", "gamma", "floor", "epsilon", "unit", "ffn", "topk", "topk_share", "topk_layers",
    "select", "attention", "dtype", "seed", "weights", "checkpointing",
)  # fmt: skip
_CHARACTERS = limits.CONFLICT_SAMPLES * limits.PAIR_CHARACTERS


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of the form, as typed, in the order of the page. An empty text means the default.

    source: which of the texts below is used, "builtin" for neither. Of given pairs all are run, unless ``samples`` says how many.
    """

    model: str = ""
    source: str = forms.BUILTIN
    samples: str = ""
    max_length: str = ""
    choice: str = "random"
    template: str = "auto"
    pairs: str = ""
    dataset: str = ""
    unit: str = "ffn"
    ffn: str = "original"
    topk: str = ""
    topk_layers: str = ""
    topk_share: str = ""
    select: str = "gate"
    loss: str = "mean"
    gamma: str = ""
    floor: str = ""
    epsilon: str = ""
    dtype: str = "auto"
    attention: str = "sdpa"
    seed: str = ""
    checkpointing: bool = False
    weights: bool = True

    def request(self) -> ConflictRequest:
        """The validated request. Raises InvalidRequest with the sentence to show, InvalidData or LimitExceeded for pairs."""
        asked = {"model": forms.one_model(self.model, "Samples are compared in one model at a time: name one."), **self._data()}
        return forms.validated(ConflictRequest, self, OPTIONS, **asked)

    def _data(self) -> dict[str, Any]:
        if self.source == PAIRS:
            pairs = pasted(self.pairs)
            return {"pairs": pairs, "samples": max(2, len(pairs))}
        return forms.dataset(self.dataset) if self.source == forms.DATASET else {}


def form(query: forms.Query) -> Form:
    """The form that the keys and values of a query describe, named as in the request; the last of each counts, unknown ones are ignored."""
    known = forms.queried(query, Form, ("model", *OPTIONS))
    if "pairs" in dict(query):
        return Form(**known, pairs=dict(query)["pairs"], source=PAIRS)
    return Form(**known | forms.queried_data(query))


def permalink(request: ConflictRequest) -> str:
    """The query that asks for the same: ``?model=...&data=...``. Pairs too long for it are omitted."""
    options = forms.changed(request, OPTIONS)
    keys = [("model", request.model)]
    if request.pairs:
        text = lines(pair.model_dump(exclude_defaults=True) for pair in request.pairs)
        keys += [("pairs", forms.linked(text)), ("samples", str(options.pop("samples", request.samples)))]
    elif request.data != forms.BUILTIN:
        keys.append(("data", request.data))
    return forms.link(keys, options)


def command(request: ConflictRequest) -> str:
    """The shell command for the same analysis; given pairs have to be saved as pairs.jsonl first."""
    from analyzers.gradient_conflict import TOPK_OPTIONS

    idle = TOPK_OPTIONS if request.ffn != "topk" else ()  # the command refuses them
    data = {}
    if request.pairs or request.data != forms.BUILTIN:
        data["data"] = "pairs.jsonl" if request.pairs else request.data
    return forms.command_line(["conflict", request.model], data | forms.changed(request, (name for name in OPTIONS if name not in idle)))


def pasted(text: str) -> tuple[dict[str, str], ...]:
    """The pairs in ``text``, each with instruction, input and output.

    A line is a JSON object with any of the fields that a file of instruction data may have, or an instruction and its answer with a tab
    between them (or instruction, input and answer). All of it may also be one JSON list. Raises InvalidData, naming the line, for what is
    none of these; LimitExceeded for too many pairs or too much text.
    """
    if len(text) > _CHARACTERS:
        raise LimitExceeded(f"{len(text):,} characters of pairs are more than {_CHARACTERS:,}, all samples together.")
    found: list[dict[str, str]] = []
    for where, row in _rows(text):
        if len(found) == limits.CONFLICT_SAMPLES:
            raise LimitExceeded(f"There are more than {limits.CONFLICT_SAMPLES} pairs, the most that are compared: paste fewer.")
        pair = pair_of(row, where)
        found.append({"instruction": pair.instruction, "input": pair.input, "output": pair.output})
    if not found:
        raise InvalidData("Paste at least 2 pairs: one per line, instruction and answer separated by a tab, or as JSON.")
    return tuple(found)


def lines(rows: Any) -> str:
    """Pairs as JSON, one per line, as `pasted` reads them."""
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
        why = str(error).partition(" (")[0]
        raise InvalidData(f"{where[:1].upper()}{where[1:]} {why}: check its quotes, commas and braces.") from None


def _columns(line: str, where: str) -> dict[str, str]:
    cells = [cell.strip() for cell in line.rstrip("\r").split("\t")]
    if len(cells) not in (2, 3):
        tabs = "no tab" if len(cells) == 1 else f"{len(cells) - 1} tabs"
        raise InvalidData(
            f"{where[:1].upper()}{where[1:]} has {tabs}: write an instruction and its answer separated by a tab, or a JSON object."
        )
    return {"instruction": cells[0], "input": cells[1] if len(cells) == 3 else "", "output": cells[-1]}
