"""Reads the log-probabilities that an engine wrote, in the forms of vLLM and OpenAI's API or as plain lists."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from analyzers.checkpoints import LocalRepository, quoted
from analyzers.core import limits
from analyzers.core.errors import InvalidData, LimitExceeded
from analyzers.core.formatting import plural
from analyzers.core.records import Record
from analyzers.core.request import request_error
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
    token_ids: tuple[Annotated[int, Field(ge=0, lt=2**31, strict=True)], ...] = ()
    tokens: tuple[str, ...] = ()
    logprobs: tuple[Annotated[float, Field(le=_ABOVE, strict=True)] | None, ...]
    forbidden: tuple[int, ...] = ()
    line: int = 0

    @model_validator(mode="after")
    def _fits_together(self) -> "EngineSequence":
        length = len(self.token_ids) or len(self.tokens)
        if length < 2 or len(self.logprobs) != length or bool(self.token_ids) == bool(self.tokens):
            raise ValueError(_lengths(length, len(self.logprobs)))
        if not all(0 <= at < length and self.logprobs[at] is None for at in self.forbidden):
            raise ValueError("forbidden tokens are positions in the sequence, without a log-probability")
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
        for answer in _answers(value):
            try:
                form, tokens, logprobs = _read(answer)
                total += len(tokens)
                if total > limits.ENGINE_TOKENS:
                    raise LimitExceeded(f"{source} has more than {limits.ENGINE_TOKENS:,} tokens: give fewer sequences.")
                read.append(_sequence(form, tokens, logprobs, number))
            except (ValidationError, InvalidData) as error:
                why = request_error(error) if isinstance(error, ValidationError) else error
                raise InvalidData(f"Line {number} of {source}: {str(why).rstrip('.')}.") from None
            except (AttributeError, LookupError, TypeError, ValueError):
                raise InvalidData(
                    f"Line {number} of {source} has none of the forms that are read: {', '.join(FORMS.values())}, with the tokens of the "
                    "prompt. For any other engine, write token_ids, including the prompt, and logprobs, null for tokens without one."
                ) from None
            if form != read[0].form:
                raise InvalidData(
                    f"Line {number} of {source} is {FORMS[form]}, and line {read[0].line} {FORMS[read[0].form]}: give one form at a time."
                )
    if not read:
        raise InvalidData(f"No sequences were found in {source}.")
    if not any(value is not None for each in read for value in each.logprobs) and not any(each.forbidden for each in read):
        raise InvalidData("Every log-probability is null: at least one token needs a value.")
    return tuple(read)


def _parsed(line: bytes, number: int, source: str) -> Any:
    try:
        return parse_json(line, lenient=True)
    except InvalidJson as error:
        raise InvalidData(f"Line {number} of {source} {error}.") from None


def _answers(value: Any) -> Iterator[Any]:
    """Yield the answers in a line: of a list each, of a completion each choice with what is outside it."""
    for answer in value if isinstance(value, list) else [value]:
        choices = (answer.get("choices") or answer.get("outputs")) if isinstance(answer, dict) else None
        if isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices):
            outside = {key: each for key, each in answer.items() if key not in ("choices", "outputs")}
            for choice in choices:
                yield outside | {key: each for key, each in choice.items() if each is not None or key not in outside}
        else:
            yield answer


def _read(answer: Mapping[str, Any]) -> tuple[str, list[Any], list[Any]]:
    """Return form, tokens (ids or texts) and their log-probabilities of an answer.

    Raises AttributeError, LookupError, TypeError or ValueError for none of the `FORMS`.
    """
    given, before = answer.get("logprobs"), answer.get("prompt_logprobs")
    prompt, ids = (list(answer.get(name) or []) for name in ("prompt_token_ids", "token_ids"))
    if isinstance(given, dict):
        form, tokens, logprobs = "openai", *_of_openai(given, prompt, ids)
    elif given is None and before is not None:
        form, tokens, logprobs = "vllm", [], []
    elif any(isinstance(each, dict) for each in given or ()):
        form, tokens, logprobs = "vllm", ids, _candidates(given, ids)
    else:
        logprobs = list(given or ())
        if ids and len(ids) - len(logprobs) not in (0, 1):
            raise InvalidData(_lengths(len(ids), len(logprobs)))
        form, tokens, logprobs = "plain", ids, [None] * (len(ids) - len(logprobs)) + logprobs
        if not prompt:
            logprobs[0] = None
    if logprobs and logprobs[0] is None:  # the prompt is included: nothing was generated without a log-probability
        return form, tokens, logprobs
    if not prompt:
        raise ValueError
    if before is None:
        return form, [*prompt, *tokens], [None] * len(prompt) + logprobs
    return "vllm", [*prompt, *tokens], _candidates(before, prompt) + logprobs


def _of_openai(given: Mapping[str, Any], prompt: list[Any], ids: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return tokens and log-probabilities of those generated, or of the whole sequence, whose first is null."""
    if "content" in given:
        tokens, logprobs = ([each[name] for each in given["content"]] for name in ("token", "logprob"))
    else:
        tokens, logprobs = list(given["tokens"]), list(given["token_logprobs"])
    known = [*prompt, *ids][: len(tokens)] if logprobs and logprobs[0] is None else ids
    return (known if len(known) == len(tokens) else [_id(token) for token in tokens]), logprobs


def _candidates(entries: Any, tokens: list[Any]) -> list[Any]:
    """Return the log-probability of each token among vLLM's candidates at its position, None where there are none."""
    if len(entries) != len(tokens):
        raise InvalidData(_lengths(len(tokens), len(entries)))
    found = [entry and entry[str(token)] for entry, token in zip(entries, tokens, strict=True)]
    return [each["logprob"] if isinstance(each, dict) else each for each in found]


def _lengths(tokens: int, logprobs: int) -> str:
    given = f"{plural(tokens, 'token')} and {plural(logprobs, 'log-probability', 'log-probabilities')}"
    return f"It has {given}, and a sequence has 2 or more tokens with a log-probability (or null) for each"


def _id(token: Any) -> Any:
    text = token.removeprefix(_BY_ID) if isinstance(token, str) and token.startswith(_BY_ID) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else token


def _sequence(form: str, tokens: list[Any], logprobs: list[Any], line: int) -> EngineSequence:
    forbidden = [at for at, value in enumerate(logprobs) if isinstance(value, int | float) and value < _FORBIDDEN]
    values = list(logprobs)
    for at in forbidden:
        values[at] = None
    kind = "tokens" if form == "openai" and any(isinstance(token, str) for token in tokens) else "token_ids"
    content: dict[str, Any] = {kind: tuple(tokens), "logprobs": tuple(values), "forbidden": tuple(forbidden)}
    return EngineSequence(form=form, line=line, **content)
