"""Implements ``mantissa completion bash|zsh|fish``."""

import argparse

from analyzers.core.command_line import Parser, print_text

SHELLS = ("bash", "zsh", "fish")


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe(
        "Print a script that completes commands and options in a shell.",
        ("bash > ~/.local/share/bash-completion/completions/mantissa", "for bash, from the next shell on"),
        ("fish > ~/.config/fish/completions/mantissa.fish", "for fish; for zsh a file _mantissa in a folder of $fpath"),
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete in")


def run(options: argparse.Namespace) -> int:
    """Print the script; return 0."""
    import shtab

    from analyzers import ANALYZERS
    from analyzers.__main__ import build_parser

    script: str = shtab.complete(build_parser({*ANALYZERS, *options.tools}, options.tools), shell=options.shell)
    print_text(script, "The script")
    return 0
