"""The endpoint for programs: the same analysis, within the same limits, as plain data."""

from collections.abc import Iterator
from typing import Any, Literal

import gradio as gr
from gradio.events import api

from analyzers import limits
from analyzers.errors import MantissaError
from components.jobs import OUR_FAULT, job, log_unexpected
from components.links import Form

DESCRIPTION = (
    "The precision passport of a checkpoint as JSON: how it is stored, which formats its values provably passed through, in which "
    "precision it was probably trained, and whether its weights fit fp16. "
    'Yields progress ({"done", "total", "unit", "note"}); the last item is the report.'
)


def inspect(
    model: str,
    mode: Literal["quick", "exact"] = "quick",
    budget: str = "",
    include: str = "",
    exclude: str = "",
    subfolder: str = "",
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Inspect a Hub model (org/name, optionally @revision) or a sample (sample:NAME); see `DESCRIPTION`."""
    try:
        for item in job(Form(str(model), str(mode), str(budget), str(include), str(exclude), str(subfolder), str(seed)).request()):
            yield item.model_dump(mode="json")
    except MantissaError as error:
        raise gr.Error(str(error), print_exception=False) from None
    except Exception as error:
        log_unexpected(error)
        raise gr.Error(OUR_FAULT, print_exception=False) from None


def add_endpoint() -> None:
    """Register ``/inspect``. Call inside the Blocks."""
    api(
        inspect,
        api_name="inspect",
        api_description=DESCRIPTION,
        concurrency_limit=limits.JOBS,
        concurrency_id="analysis",
        api_visibility="public",
    )
