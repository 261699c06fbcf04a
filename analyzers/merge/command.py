"""The command ``mantissa merge BASE+ADAPTER --out DIR``."""

import argparse
from typing import get_args

from analyzers.checkpoints import Access
from analyzers.command_line import Parser, print_json, print_lines, with_progress
from analyzers.formatting import listed, plural, share, size
from analyzers.merge.report import Dtype, MergeReport


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe(
        "Write a base with an adapter (LoRA, rsLoRA, DoRA) merged in, computed in fp32, and tell what its dtype loses of the update.",
        ("org/base+org/adapter --out ./merged", "the result is read back and compared before the folder gets its name"),
        ("./base+0.7*./one+0.3*./other --out ./merged --dtype bfloat16 --json", "two adapters, with weights"),
    )
    parser.add_argument("model", metavar="BASE+ADAPTER", help="or an adapter alone, if its configuration names its base")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write, which must not exist")
    parser.add_argument("--dtype", choices=get_args(Dtype), default="float32", help="of the stored weights (default: float32)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(options: argparse.Namespace) -> int:
    """Merge, and print the report. Returns 0. Raises MantissaError."""
    from analyzers.merge.run import merge

    items = with_progress(merge(options.model, options.out, options.dtype, Access(token=True, local=True)), options.model)
    (report,) = (item for item in items if isinstance(item, MergeReport))
    if options.json:
        print_json(report.to_json(), "The report")
    else:
        print_lines(text(report), "The report")
    return 0


def text(report: MergeReport) -> list[str]:
    """Return the lines of a report: what was written, and what the dtype loses."""
    counts = {"computed": report.computed, "taken from the adapter": report.replaced, f"converted to {report.dtype}": report.converted}
    parts = [f"{count:,} {what}" for what, count in (counts | {"copied bit for bit": report.copied}).items() if count]
    lines = [
        f"{report.out}: {size(report.bytes)}, {report.dtype}; {plural(report.tensors, 'tensor')}: {listed(parts)}. "
        "Read back and compared with the sum in fp32, rounded once."
    ]
    same = report.computed + report.replaced - report.changed
    if same:
        equal = plural(same, "of these tensors equals", "of these tensors equal")
        lines.append(f"  {equal} the base's: the adapter changes nothing there.")
    if report.changed_share is not None and report.dtype != "float32":
        lost = f"; {share(report.lost_norm)} of the update's norm is lost" if report.lost_norm is not None else ""
        lines.append(
            f"  in {report.dtype}, {share(report.changed_share)} of {report.touched:,} updated weights differ from the base's{lost}."
        )
    return [*lines, *report.notes]
