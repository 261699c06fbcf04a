"""Modules that the fork server imports once for all processes of analyses: the analyzers, torch, and compiled loops.

No import starts torch's threads, which a forked process would lack.
"""

from analyzers import ANALYZERS
from analyzers.checkpoints.hub import hub_repository as hub_repository
from analyzers.language_models import load as load
from analyzers.numerics.warm_up import warm_up

for analyzer in ANALYZERS.values():
    analyzer.load()
warm_up()
