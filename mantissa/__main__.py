"""Runs the program ``mantissa``: the command line of `analyzers.__main__`, and the commands of `mantissa.commands`."""

import sys

import mantissa
from analyzers import __main__ as command_line
from analyzers.core.terminal import print_line
from mantissa.commands import COMMANDS


def main() -> int:
    """Run one command; return the exit status, as `analyzers.__main__.main` does."""
    if sys.argv[1:] == ["--version"]:
        print_line(f"mantissa {mantissa.__version__}", sys.stdout)
        return 0
    return command_line.main(tools={**command_line.TOOLS, **COMMANDS})


if __name__ == "__main__":
    sys.exit(main())
