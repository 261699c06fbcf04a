"""Fixtures of tokenizers in their bounded processes."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from analyzers.language_models.tokenizer import Tokenizer
from tests.language_models.tokenizers import Run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Open Mantissa's tokenizers on the saved files of tokenizers from transformers."""
    with ExitStack() as stack:

        def opened(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
            tokenizer.save_pretrained(str(tmp_path / "tokenizer"))
            ours = Tokenizer(tmp_path / "tokenizer", PreTrainedConfig())
            stack.callback(ours.close)
            return ours

        yield opened
