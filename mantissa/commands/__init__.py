"""Registers the commands that only the package has: the pages, and their library."""

from importlib import import_module

from analyzers.__main__ import Tools

COMMANDS: Tools = {
    "app": ("start the pages on this machine; needs mantissa[app]", lambda: import_module("mantissa.commands.app")),
    "library": ("add the results of a scan to the library of the pages", lambda: import_module("mantissa.commands.library")),
}
"""Commands in the format of `analyzers.__main__.TOOLS`."""
