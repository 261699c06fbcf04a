"""What the fork server imports, so that the processes of analyses start with it: all analyzers, torch, and compiled loops.

None of it starts threads of torch's, which a forked process would lack.
"""

from analyzers import ANALYZERS
from analyzers.checkpoints.hub import hub_repository as hub_repository
from analyzers.language_models import load as load
from analyzers.numerics.warm_up import warm_up

for analyzer in ANALYZERS.values():
    analyzer.load()
warm_up()
