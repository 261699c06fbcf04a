"""Conversations as text, by a tokenizer's chat template."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analyzers import limits
from analyzers.checkpoints import quoted
from analyzers.errors import InvalidCheckpoint, LimitExceeded

Conversation = Sequence[Mapping[str, str]]

_SCRIPT = Path(__file__).with_name("render_chat.py")
# What an interpreter needs to start as this one did: a template has no business with tokens and other secrets beside it.
_ENVIRONMENT = ("PATH", "HOME", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


def lay_out(tokenizer: Any, conversations: Sequence[Conversation]) -> list[str]:
    """Each conversation (messages with ``role`` and ``content``) as text, all in one process that ends with this call.

    Raises InvalidCheckpoint for a template that fails; LimitExceeded for one that takes more than limits.TEMPLATE_SECONDS in all, more
    than limits.TEMPLATE_BYTES of memory (not bounded on macOS), or adds more than limits.TEMPLATE_CHARACTERS to a conversation.
    """
    try:
        template, tokens = tokenizer.get_chat_template(), tokenizer.special_tokens_map
    except Exception:  # several templates, none of them the usual one
        template, tokens = None, {}
    if not isinstance(template, str):
        raise InvalidCheckpoint("The tokenizer has no chat template for plain conversations.")
    asked = {"template": template, "tokens": tokens, "bytes": limits.TEMPLATE_BYTES}
    asked |= {"seconds": limits.TEMPLATE_SECONDS, "characters": limits.TEMPLATE_CHARACTERS}
    answers = _answers("\n".join(json.dumps(line, default=str) for line in (asked, *conversations)))
    last = answers[-1] if answers else None
    if isinstance(last, dict):
        raise _error(last["failed"], last.get("said", ""))
    if len(answers) < len(conversations):
        raise InvalidCheckpoint("The tokenizer's chat template cannot be used: running it broke off.")
    return answers


def _answers(lines: str) -> list[Any]:
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    command = [sys.executable, "-P", str(_SCRIPT)]  # -P: or modules beside the script would stand before the standard library
    try:
        done = subprocess.run(  # noqa: S603 - the program is ours, and the template is its input
            command,
            input=lines.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=limits.TEMPLATE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise _error("seconds") from None
    return [json.loads(line) for line in done.stdout.splitlines() if line.endswith((b'"', b"}"))]


def _error(failed: str, said: str = "") -> InvalidCheckpoint | LimitExceeded:
    most = {
        "seconds": f"takes more than {limits.TEMPLATE_SECONDS:,} seconds (MANTISSA_TEMPLATE_SECONDS)",
        "bytes": f"takes more than {limits.TEMPLATE_BYTES:,} bytes of memory (MANTISSA_TEMPLATE_BYTES)",
        "characters": f"adds more than {limits.TEMPLATE_CHARACTERS:,} characters to a sample (MANTISSA_TEMPLATE_CHARACTERS)",
    }
    if failed in most:
        return LimitExceeded(f"The tokenizer's chat template {most[failed]}.")
    return InvalidCheckpoint(f"The tokenizer's chat template cannot be used: {quoted(said, 200)}.")
