"""The commands ``mantissa shrink MODEL --out DIR`` and ``mantissa merge BASE+ADAPTER --out DIR``."""

import argparse
from collections.abc import Iterator
from types import SimpleNamespace
from typing import get_args

from analyzers.checkpoints import Access
from analyzers.core.command_line import Parser, print_json, print_lines, with_progress
from analyzers.core.request import Progress
from analyzers.write.report import MergeTo, ShrinkTo, WrittenReport


def _add_shrink_options(parser: Parser) -> None:
    parser.describe(
        "Store a checkpoint in fewer bytes without changing a value: each fp32 tensor in a 16-bit format that holds its values.",
        ("./checkpoint --out ./smaller", "the result is read back and compared before the folder gets its name"),
        ("org/name --out ./smaller --to bf16", "a model of the Hub, in bf16 where that holds every value"),
    )
    parser.add_argument("model", metavar="MODEL", help="org/name, org/name@revision, sample:NAME, ./folder or /file")
    only = "consider only this format (default: bf16 and fp16)"
    parser.add_argument("--to", choices=get_args(ShrinkTo), default="auto", help=only)
    _add_output_options(parser)


def _add_merge_options(parser: Parser) -> None:
    parser.describe(
        "Write a base with an adapter (LoRA, rsLoRA, DoRA) merged in, computed in fp32, and tell what its dtype loses of the update.",
        ("org/base+org/adapter --out ./merged", "the result is read back and compared before the folder gets its name"),
        ("./base+0.7*./one+0.3*./other --out ./merged --to bf16 --json", "two adapters, with weights"),
    )
    parser.add_argument("model", metavar="BASE+ADAPTER", help="or an adapter alone, if its configuration names its base")
    parser.add_argument("--to", choices=get_args(MergeTo), default="fp32", help="dtype of the stored weights (default: fp32)")
    _add_output_options(parser)


def _add_output_options(parser: Parser) -> None:
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write, which must not exist")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _run_shrink(options: argparse.Namespace) -> int:
    """Shrink a checkpoint, and print the report. Returns 0. Raises MantissaError."""
    from analyzers.write.shrink import shrink

    return _print(shrink(options.model, options.out, options.to, Access(token=True, local=True)), options)


def _run_merge(options: argparse.Namespace) -> int:
    """Merge, and print the report. Returns 0. Raises MantissaError."""
    from analyzers.write.merge import merge

    return _print(merge(options.model, options.out, options.to, Access(token=True, local=True)), options)


def _print(items: Iterator[Progress | WrittenReport], options: argparse.Namespace) -> int:
    (report,) = (item for item in with_progress(items, options.model) if isinstance(item, WrittenReport))
    if options.json:
        print_json(report.to_json(), "The report")
    else:
        print_lines(report.lines(), "The report")
    return 0


SHRINK = SimpleNamespace(add_options=_add_shrink_options, run=_run_shrink)
MERGE = SimpleNamespace(add_options=_add_merge_options, run=_run_merge)
