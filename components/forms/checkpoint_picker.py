"""Builds the checkpoint picker, which offers built-in samples and search results from the Hub."""

import re
import threading
import time
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import gradio as gr

from analyzers.checkpoints.hub import hub_repository
from analyzers.core.errors import HubError
from analyzers.language_models.samples import SAMPLES

_SEARCHES = 4  # Concurrent Hub searches of all pickers; further keystrokes do not search.
_SHORTEST = 2
_REST_SECONDS = 30.0
# Choices repeat the typed text, so there are none for texts longer than a few references.
_LONGEST = 1_000
UNREACHABLE = "The Hub cannot be reached, so there are no suggestions from it."
SAMPLES_WORK = " The samples work without it."


# Shown until the visitor types. They also keep the list at a constant length: Gradio's dropdown fails if its list shrinks while open.
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


def choices(found: list[str] | None = None, before: str = "", wanted: str = "", samples: bool = True) -> list[str]:
    """List search results, then samples and well-known models, those that contain ``wanted`` first: constant length, no duplicates.

    before: the text before the reference being typed; each choice is appended to it. page.js hides those that do not match a single text.
    samples: offer the built-in samples.
    """
    known = [*(f"sample:{name}" for name in SAMPLES if samples), *WELL_KNOWN]
    listed = dict.fromkeys([*(found or ())[: len(WELL_KNOWN)], *sorted(known, key=lambda name: wanted.lower() not in name.lower())])
    return [before + name for name in list(listed)[: len(known)]]


class Suggestions:
    """Suggestions from the Hub as the visitor types, without piling up slow requests.

    At most ``_SEARCHES`` searches run at once. After a failure, searching pauses for half a minute. Thread-safe.

    samples: also suggest the built-in samples.
    """

    def __init__(self, search: Callable[[str, int], list[str]] | None = None, samples: bool = True) -> None:
        self._search, self._samples = search, samples
        self._free = threading.BoundedSemaphore(_SEARCHES)
        self._silent_until = 0.0

    def find(self, text: str) -> tuple[list[str], str] | None:
        """Return the choices for the last model in ``text`` and a note, "" unless the Hub failed; None leaves the picker unchanged."""
        if len(text) > _LONGEST:
            return choices(samples=self._samples), ""
        typed = re.fullmatch(r"(.*[\s,;+*])?([^\s,;+*]*)", text.strip(), re.DOTALL)
        before, wanted = (typed[1] or "", typed[2]) if typed else ("", "")
        fixed = choices(None, before, wanted, self._samples)
        unreachable = UNREACHABLE + (SAMPLES_WORK if self._samples else "")
        if len(wanted) < _SHORTEST or wanted.startswith(("sample", "http", "/", ".")):
            return fixed, ""
        if time.monotonic() < self._silent_until:
            return fixed, unreachable
        if not self._free.acquire(blocking=False):
            return None
        try:
            models = (self._search or hub_repository.search_models)(wanted.split("@")[0], len(WELL_KNOWN))
        except HubError:
            self._silent_until = time.monotonic() + _REST_SECONDS
            return fixed, unreachable
        finally:
            self._free.release()
        return choices(models, before, wanted, self._samples), ""


def build_picker(label: str, name: str, samples: bool = True) -> gr.Dropdown:
    """Lay out a picker with element id ``name``. samples: offer the built-in samples. Call inside a page."""
    return gr.Dropdown(
        choices(samples=samples),
        value=None,
        label=label,
        allow_custom_value=True,
        filterable=True,
        interactive=True,
        scale=1,
        elem_id=name,
        elem_classes="m-picker",
    )


def wire_search(pickers: Sequence[gr.Dropdown], samples: bool = True) -> None:
    """Search the Hub as the visitor types in one of ``pickers``. Call where the note that the Hub cannot be reached should appear."""
    suggestions = Suggestions(samples=samples)
    offline = gr.HTML(elem_classes="m-plain")
    # The text is read when the search starts: the value in a queued keystroke event is stale by then.
    typed = gr.Textbox(visible=False)

    def search(text: str | None) -> tuple[Any, Any]:
        found = suggestions.find(text or "")
        if found is None:
            return gr.skip(), gr.skip()
        offered, note = found
        return gr.update(choices=offered), f'<p class="m-offline" role="status">{escape(note)}</p>' if note else ""

    for picker in pickers:
        picker.key_up(
            search,
            typed,
            [picker, offline],
            js=f"() => document.querySelector('#{picker.elem_id} input').value",
            queue=False,
            show_progress="hidden",
            trigger_mode="always_last",
            api_visibility="private",
        )
