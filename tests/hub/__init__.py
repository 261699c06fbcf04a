"""A small local Hugging Face Hub for tests and benchmarks; the real client talks to it over loopback."""

from .faults import Fault
from .process import HubProcess
from .repositories import Contents, Generated, OnDisk
from .server import LocalHub
from .wire import Request

__all__ = ["Contents", "Fault", "Generated", "HubProcess", "LocalHub", "OnDisk", "Request"]
