"""Runs the model on an engine's tokens, forward only: batches of sequences padded on the right, which causal attention never reaches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from analyzers.core import limits
from analyzers.core.errors import InvalidData
from analyzers.language_models.batch import Batch
from analyzers.language_models.load import OpenModel
from analyzers.language_models.stages import micro_batches
from analyzers.precision_variants.casts import RunnableModel
from analyzers.precision_variants.engine.comparison import Floats
from analyzers.precision_variants.logprobs import EngineSequence
from analyzers.precision_variants.run import Run, RunOptions

_BATCH_TOKENS = 4_096  # Tokens that run together, unless one sequence has more.

Rows = tuple[tuple[int, ...], ...]


def token_rows(sequences: Sequence[EngineSequence], opened: OpenModel) -> Rows:
    """Return the token ids of each sequence. Raises InvalidData for ids without an embedding, and for texts that this model's tokenizer
    splits into other tokens.
    """
    known = int(cast(Any, opened.outline).get_input_embeddings().weight.shape[0])
    texts = ["".join(sequence.tokens) for sequence in sequences if not sequence.token_ids]
    encoded = iter(opened.tokenizer.encode(texts, limits.ENGINE_TOKENS, special=False) if texts else [])
    rows = []
    for sequence in sequences:
        row = sequence.token_ids
        if not row:
            row = tuple(next(encoded))
            if len(row) != len(sequence.tokens):
                raise InvalidData(
                    f"The text of line {sequence.line} has {len(sequence.tokens):,} tokens of the engine and {len(row):,} of this model's "
                    "tokenizer: let the engine write token ids (vLLM: return_tokens_as_token_ids), or name the model that it ran."
                )
        if max(row) >= known:
            raise InvalidData(
                f"Line {sequence.line} of the log-probabilities has token {max(row):,}, and the last embedding of this model is "
                f"{known - 1:,}: they are of another model or tokenizer."
            )
        rows.append(row)
    return tuple(rows)


def given_log_p(sequences: Sequence[EngineSequence]) -> list[Floats]:
    """Return the engine's log-probabilities by sequence, of every token but the first: NaN where there is none, -inf where forbidden."""
    values = [np.array([np.nan if value is None else value for value in each.logprobs]) for each in sequences]
    for each, row in zip(sequences, values, strict=True):
        row[list(each.forbidden)] = -np.inf
    return [row[1:] for row in values]


def padded(rows: Rows, indices: Sequence[int], device: str) -> Batch:
    """Return the batch of these sequences."""
    lengths = tuple(len(rows[index]) for index in indices)
    token_ids = torch.zeros(len(indices), max(lengths), dtype=torch.int64)
    for at, index in enumerate(indices):
        token_ids[at, : lengths[at]] = torch.tensor(rows[index])
    token_ids = token_ids.to(device)
    return Batch(token_ids, token_ids, lengths)


@dataclass(slots=True)
class EngineRun:
    """One run. log_p: of each token but the first, by sequence. logits: of the tokens asked for, by (sequence, token)."""

    log_p: list[Floats]
    logits: dict[tuple[int, int], Tensor] = field(default_factory=dict)


def run(
    model: RunnableModel, rows: Rows, options: RunOptions, asked: Mapping[int, Sequence[int]] | None = None
) -> Iterator[EngineRun | None]:
    """Run every sequence. Yields None after each layer, at last the run. asked: the tokens whose logits are wanted, by sequence (token 1 is
    the first that is predicted).
    """
    result, together = EngineRun([np.empty(0)] * len(rows)), micro_batches([len(row) for row in rows], _BATCH_TOKENS)
    device = str(model.model.get_input_embeddings().weight.device)
    passed = Run(model, [padded(rows, indices, device).token_ids for indices in together], options)
    wanted = [[(at, token - 1) for at, index in enumerate(indices) for token in (asked or {}).get(index, ())] for indices in together]
    for found in passed.forward_only(wanted):
        if found is None:
            yield None
            continue
        for indices, chosen, (log_p, logits) in zip(together, wanted, found, strict=True):
            for at, index in enumerate(indices):
                result.log_p[index] = log_p[at, : len(rows[index]) - 1].double().numpy()
            result.logits |= {(indices[at], position + 1): each for (at, position), each in zip(chosen, logits, strict=True)}
    yield result
