"""Runs documents and shows the last line of each block as a notebook would.

Standard input is JSON: a list of the Python blocks of each document, which share a namespace. Prints for each block the length of its
HTML, or null if it shows none.
"""

import ast
import json
import sys
from typing import Any


def run(block: str, names: dict[str, Any]) -> Any:
    """Run a block and return the value of its last line, or None if that is a statement."""
    tree = ast.parse(block)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "block", "exec"), names)
    return eval(compile(ast.Expression(last.value), "block", "eval"), names) if isinstance(last, ast.Expr) else None


def shown(value: Any) -> int | None:
    """Return the length of the HTML that a notebook shows for a value."""
    for name in ("_repr_html_", "_repr_mimebundle_"):
        if hasattr(value, name):
            return len(str(getattr(value, name)()))
    return None


if __name__ == "__main__":
    lengths = []
    for document in json.load(sys.stdin):
        namespace: dict[str, Any] = {"__name__": "__main__"}
        lengths.append([shown(run(block, namespace)) for block in document])
    print("\n" + json.dumps(lengths))
