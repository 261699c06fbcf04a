"""What tools answer over MCP: JSON. Gradio by itself writes an object as Python does, which is no format."""

import json
from typing import Any

from gradio.mcp import GradioMCPServer


def answer_in_json() -> None:
    """From now on every tool does. A text stays as it is."""
    written = GradioMCPServer.postprocess_output_data

    def in_json(server: GradioMCPServer, data: Any, root_url: str) -> Any:
        return written(server, [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in data], root_url)

    GradioMCPServer.postprocess_output_data = in_json  # type: ignore[method-assign, assignment]
