"""Run documents: JSON on standard input, a list of the blocks of Python of each, which share a namespace; the last line of a block is
shown as a notebook would.

Prints for each block the length of its HTML, or null where it shows none.
"""

import ast
import json
import sys
from typing import Any


def run(block: str, names: dict[str, Any]) -> Any:
    """The value of the block's last line, None where that is a statement."""
    tree = ast.parse(block)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "block", "exec"), names)
    return eval(compile(ast.Expression(last.value), "block", "eval"), names) if isinstance(last, ast.Expr) else None


def shown(value: Any) -> int | None:
    """The length of what a notebook shows of a value."""
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
