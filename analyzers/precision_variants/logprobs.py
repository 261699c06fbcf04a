"""Reads the log-probabilities that an engine wrote, in the forms of vLLM and OpenAI's API or as plain lists."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import model_validator

from analyzers.checkpoints import LocalRepository, quoted
from analyzers.core import limits
from analyzers.core.errors import InvalidData, LimitExceeded
from analyzers.core.formatting import plural
from analyzers.core.records import Record
from analyzers.core.untrusted_json import InvalidJson, parse_json

FORMS = {
    "plain": "token_ids and logprobs",
    "vllm": "vLLM's outputs",
    "openai": "answers of OpenAI's API",
}
"""Name of each form that is recognised, and what it is."""

_ABOVE = 1e-3  # Rounding may put a log-probability above 0 by this much.
_FORBIDDEN = -9_000.0  # vLLM's server writes -9999 for minus infinity, which JSON does not have.
_BY_ID = "token_id:"  # How vLLM writes a token with return_tokens_as_token_ids.


class EngineSequence(Record):
    """One sequence. token_ids: all its tokens; empty where only their texts are known (``tokens``), which the model's tokenizer encodes.
    logprobs: one per token, of this token after those before it; null where the engine gave none, as for the first. forbidden: positions
    whose log-probability is minus infinity (null in logprobs).
    """

    form: str = "plain"
    token_ids: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float | None, ...]
    forbidden: tuple[int, ...] = ()
    line: int = 0

    @model_validator(mode="after")
    def _fits_together(self) -> "EngineSequence":
        length = len(self.token_ids) or len(self.tokens)
        if length < 2 or len(self.logprobs) != length or bool(self.token_ids) == bool(self.tokens):
            raise ValueError(f"a sequence has 2 or more tokens and a log-probability (or null) for each: {length} and {len(self.logprobs)}")
        if not all(0 <= at < length and self.logprobs[at] is None for at in self.forbidden):
            raise ValueError("forbidden tokens are positions in the sequence, without a log-probability")
        if self.token_ids and min(self.token_ids) < 0:
            raise ValueError(f"token ids are not negative: {min(self.token_ids)}")
        if any(value is not None and value > _ABOVE for value in self.logprobs):
            raise ValueError("log-probabilities are not above 0")
        return self


def read_logprobs(path: str) -> tuple[EngineSequence, ...]:
    """Read a local file. Raises CheckpointNotFound, InvalidData, LimitExceeded."""
    files = LocalRepository(path).files
    if Path(path).is_dir():
        raise InvalidData(f"{quoted(path)} is a folder: name a file.")
    if (size := max(files.values())) > limits.ENGINE_BYTES:
        raise LimitExceeded(f"{quoted(path)} has {size:,} bytes, more than {limits.ENGINE_BYTES:,}: give fewer sequences.")
    return parse_logprobs(Path(path).read_bytes(), quoted(path))


def parse_logprobs(text: str | bytes, source: str = "the log-probabilities") -> tuple[EngineSequence, ...]:
    """Parse JSON lines, one answer of the engine (or a list of them) per line, or a single indented answer. Raises InvalidData with the
    number of the line.
    """
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > limits.ENGINE_BYTES:
        raise LimitExceeded(f"{source} have {len(raw):,} bytes, more than {limits.ENGINE_BYTES:,}: give fewer sequences.")
    lines = [(number, line) for number, line in enumerate(raw.splitlines(), 1) if line.strip()]
    if lines and lines[0][1].strip() in (b"[", b"{"):
        lines = [(lines[0][0], raw)]
    return sequences(((number, _parsed(line, number, source)) for number, line in lines), source)


def sequences(values: Iterator[tuple[int, Any]], source: str = "the log-probabilities") -> tuple[EngineSequence, ...]:
    """Read parsed lines with their numbers. Raises InvalidData."""
    read: list[EngineSequence] = []
    total = 0
    for number, value in values:
        try:
            for answer in _answers(value):
                form, tokens, logprobs = _read(answer)
                read.append(_sequence(form, tokens, logprobs, number))
                total += len(tokens)
                if total > limits.ENGINE_TOKENS:
                    raise LimitExceeded(f"{source} has more than {limits.ENGINE_TOKENS:,} tokens: give fewer sequences.")
                if form != read[0].form:
                    raise _Wrong(f"is {FORMS[form]}, and line {read[0].line} {FORMS[read[0].form]}: give one form at a time")
        except _Wrong as error:
            raise InvalidData(f"Line {number} of {source} {error}.") from None
    if not read:
        raise InvalidData(f"No sequences were found in {source}.")
    if not any(value is not None for each in read for value in each.logprobs) and not any(each.forbidden for each in read):
        raise InvalidData("Every log-probability is null: at least one token needs a value.")
    return tuple(read)


class _Wrong(Exception):
    """A line that cannot be used. ``str(error)`` follows "Line 7 of FILE"."""


def _parsed(line: bytes, number: int, source: str) -> Any:
    try:
        return parse_json(line, lenient=True)
    except InvalidJson as error:
        raise InvalidData(f"Line {number} of {source} {error}.") from None


def _answers(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the answers in a line: of a list each, of a completion each choice with what is outside it."""
    for answer in value if isinstance(value, list) else [value]:
        if not isinstance(answer, dict):
            raise _Wrong("is not a JSON object with token ids and log-probabilities")
        choices = answer.get("choices") or answer.get("outputs")
        if isinstance(choices, list) and choices:
            outside = {key: each for key, each in answer.items() if key not in ("choices", "outputs")}
            for choice in choices:
                if not isinstance(choice, dict):
                    raise _Wrong("has a choice that is not a JSON object")
                yield outside | {key: each for key, each in choice.items() if each is not None or key not in outside}
        else:
            yield answer


_Tokens = list[int | str]
_Read = tuple[str, _Tokens, list[Any]]


def _read(answer: Mapping[str, Any]) -> _Read:
    """Return form, tokens (ids or texts) and their log-probabilities of an answer."""
    given, prompt = answer.get("logprobs"), _listed(answer.get("prompt_token_ids") or [], "prompt_token_ids")
    form, tokens, logprobs = _given(answer, given, prompt)
    if logprobs and logprobs[0] is None:  # the prompt is included: nothing was generated without a log-probability
        return form, tokens, logprobs
    if answer.get("prompt_logprobs") is None:
        if not prompt:
            raise _Wrong("has log-probabilities of generated tokens only, and the model needs the tokens before them: add prompt_token_ids")
        return form, [*prompt, *tokens], [None] * len(prompt) + logprobs
    entries = _listed(answer["prompt_logprobs"], "prompt_logprobs")
    if not prompt:
        raise _Wrong("has prompt_logprobs without prompt_token_ids, and so not the first token: ask vLLM for them with return_token_ids")
    if len(prompt) != len(entries):
        raise _Wrong(f"has {len(prompt):,} prompt_token_ids and {len(entries):,} prompt_logprobs")
    before = [_candidate(entry, token) for entry, token in zip(entries, prompt, strict=True)]
    return "vllm", [*prompt, *tokens], before + logprobs


def _given(answer: Mapping[str, Any], given: Any, prompt: _Tokens) -> _Read:
    """Return form, tokens and log-probabilities of ``logprobs``: those generated, or of the whole sequence, whose first is null."""
    ids = _listed(answer.get("token_ids") or [], "token_ids")
    if isinstance(given, dict) and ("content" in given or "token_logprobs" in given):
        if "content" in given:
            entries = _listed(given["content"], "logprobs.content")
            tokens, logprobs = ([_field(each, name) for each in entries] for name in ("token", "logprob"))
        else:
            tokens, logprobs = (_listed(given.get(name), name) for name in ("tokens", "token_logprobs"))
        if len(tokens) != len(logprobs):
            raise _Wrong(f"has {len(tokens):,} tokens and {len(logprobs):,} log-probabilities")
        known = [*prompt, *ids][: len(tokens)] if logprobs and logprobs[0] is None else ids
        return "openai", known if len(known) == len(tokens) else [_id(token) for token in tokens], logprobs
    if given is None and answer.get("prompt_logprobs") is not None:
        return "vllm", [], []
    if not isinstance(given, list) or not ids:
        what = f"none of the forms that are read: {', '.join(FORMS.values())}" if given is None else "log-probabilities without token_ids"
        raise _Wrong(f"has {what}. For any other engine, write token_ids, including the prompt, and logprobs, null for tokens without one")
    if any(isinstance(each, dict) for each in given) and len(given) == len(ids):
        return "vllm", ids, [_candidate(entry, token) for entry, token in zip(given, ids, strict=True)]
    if len(given) not in (len(ids), len(ids) - 1):
        values = plural(len(given), "log-probability", "log-probabilities")
        raise _Wrong(f"has {len(ids):,} token ids and {values}: as many, or one fewer, are needed")
    if len(given) == len(ids) and not prompt:
        return "plain", ids, [None, *given[1:]]
    return "plain", ids, [None] * (len(ids) - len(given)) + given


def _candidate(entry: Any, token: Any) -> Any:
    """Return the log-probability of a token among vLLM's candidates at its position."""
    if entry is None:
        return None
    value = entry.get(str(token)) if isinstance(entry, dict) else None
    if value is None:
        raise _Wrong(f"has no log-probability of token {token} among the candidates at its position")
    return _field(value, "logprob") if isinstance(value, dict) else value


def _id(token: Any) -> Any:
    text = token.removeprefix(_BY_ID) if isinstance(token, str) and token.startswith(_BY_ID) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else token


def _listed(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise _Wrong(f"has no list of {name}")
    return value


def _field(entry: Any, name: str) -> Any:
    if not isinstance(entry, dict) or name not in entry:
        raise _Wrong(f"has an entry without {name}")
    return entry[name]


def _sequence(form: str, tokens: Sequence[Any], logprobs: Sequence[Any], line: int) -> EngineSequence:
    """Check every value. Raises _Wrong."""
    texts = form == "openai" and any(isinstance(token, str) for token in tokens)
    if len(tokens) < 2:
        raise _Wrong(f"has {len(tokens)} token{'s' if len(tokens) != 1 else ''}: at least 2 are needed to predict one")
    if texts and not all(isinstance(token, str) for token in tokens):
        raise _Wrong("has the ids of some tokens and only the texts of others: ask for all ids (vLLM: return_token_ids)")
    if not texts and (wrong := next((each for each in tokens if type(each) is not int or not 0 <= each < 2**31), None)) is not None:
        raise _Wrong(f"has the token id {quoted(str(wrong), 20)}, which is not a token id")
    values, forbidden = list[float | None](), list[int]()
    for position, value in enumerate(logprobs):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise _Wrong(f"has the log-probability {quoted(str(value), 20)}, which is not a number")
        if value is not None and (value != value or value > _ABOVE):
            what = "NaN" if value != value else f"{value:g}, which is above 0"
            raise _Wrong(f"has the log-probability {what}, at token {position:,}")
        if value is not None and (value == -math.inf or value < _FORBIDDEN):
            forbidden.append(position)
        values.append(None if value is None or (forbidden and forbidden[-1] == position) else float(value))
    kept: dict[str, Any] = {"tokens" if texts else "token_ids": tuple(tokens)}
    return EngineSequence.model_construct(
        form=form, logprobs=tuple(values), forbidden=tuple(forbidden), line=line, **({"token_ids": (), "tokens": ()} | kept)
    )
