"""Makes tokenizers of transformers."""

from typing import Any

from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def fast(inner: Inner, **settings: object) -> PreTrainedTokenizerFast:
    made: Any = PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerFast = made(tokenizer_object=inner, **settings)
    return tokenizer


def byte_tokenizer(**settings: object) -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token for each byte of UTF-8 and no special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Inner(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return fast(inner, **settings)
