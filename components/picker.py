"""The choices of the checkpoint picker: the built-in samples always, and what a search of the Hub finds."""

import re
import threading
import time
from collections.abc import Callable

from analyzers import limits
from analyzers.checkpoints import hub
from analyzers.errors import HubError
from analyzers.language_models.samples import SAMPLES

_SHORTEST = 2
_REST_SECONDS = 30.0
# Choices repeat what is typed: beyond a few models there are none.
_LONGEST = 1_000
UNREACHABLE = "The Hub cannot be reached, so there are no suggestions from it. The samples work without it."


# Shown until something is typed. They also keep the list at one length: Gradio's dropdown fails on a list that becomes shorter while open.
WELL_KNOWN = (
    "google-t5/t5-small",
    "EleutherAI/pythia-1b",
    "meta-llama/Llama-2-7b-hf",
    "openai-community/gpt2",
    "facebook/opt-125m",
    "bigscience/bloom-560m",
    "mistralai/Mistral-7B-v0.1",
    "Qwen/Qwen2.5-0.5B",
)


def choices(found: list[str] | None = None, before: str = "") -> list[str]:
    """What the Hub found, then the samples, then well-known models: always of the same length, without repeats.

    before: what stands before the model being typed; each choice continues it.
    """
    samples = [f"sample:{name}" for name in SAMPLES]
    listed = dict.fromkeys([*(found or ())[: len(WELL_KNOWN)], *samples, *WELL_KNOWN])
    return [before + name for name in list(listed)[: len(samples) + len(WELL_KNOWN)]]


class Suggestions:
    """Searches the Hub while somebody types, without letting slow answers pile up.

    At most ``SEARCHES`` run at once, and after a failure none is tried for half a minute. Safe to use from several threads.
    """

    def __init__(self, search: Callable[[str, int], list[str]] | None = None) -> None:
        self._search = search
        self._free = threading.BoundedSemaphore(limits.SEARCHES)
        self._silent_until = 0.0

    def find(self, text: str) -> tuple[list[str], str] | None:
        """The choices for the last model in ``text`` and a note (empty when all is well); None: leave things as they are."""
        if len(text) > _LONGEST:
            return choices(), ""
        typed = re.fullmatch(r"(.*[\s,;])?([^\s,;]*)", text.strip(), re.DOTALL)
        before, wanted = (typed[1] or "", typed[2]) if typed else ("", "")
        fixed = choices(before=before)
        if len(wanted) < _SHORTEST or wanted.startswith(("sample", "http", "/", ".")):
            return fixed, ""
        if time.monotonic() < self._silent_until:
            return fixed, UNREACHABLE
        if not self._free.acquire(blocking=False):
            return None
        try:
            found = (self._search or hub.search_models)(wanted.split("@")[0], len(WELL_KNOWN))
        except HubError:
            self._silent_until = time.monotonic() + _REST_SECONDS
            return fixed, UNREACHABLE
        finally:
            self._free.release()
        return choices(found, before), ""
