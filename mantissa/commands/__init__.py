"""Registers the commands that only the package has: the pages, their library, and shell completion."""

from importlib import import_module

from analyzers.__main__ import Tools

COMMANDS: Tools = {
    "app": ("start the pages on this machine; needs mantissa[app]", lambda: import_module("mantissa.commands.app")),
    "library": ("add the results of a scan to the library of the pages, or restore it", lambda: import_module("mantissa.commands.library")),
    "completion": ("print a script that completes commands and options in a shell", lambda: import_module("mantissa.commands.completion")),
}
"""Commands in the format of `analyzers.__main__.TOOLS`."""
