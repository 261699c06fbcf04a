"""What the fork server imports, so that the processes of analyses start with it: the analyzers that read weights, and their loops."""

from analyzers import ANALYZERS
from analyzers.checkpoints import hub as hub
from analyzers.numerics.warm_up import warm_up

for analyzer in ANALYZERS.values():
    if not analyzer.runs_model:
        analyzer.load()
warm_up()
