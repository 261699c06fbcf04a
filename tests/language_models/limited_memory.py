"""Runs an analysis in limited memory: ``python -m tests.language_models.limited_memory KIND FOLDER OPTIONS BYTES...``.

Prints a JSON list with notes, seconds and values of a run for each BYTES, the address space allowed in addition to that in use after an
analysis of a small sample; 0 for no limit. OPTIONS: further fields of the request, as JSON.
"""

import json
import resource
import sys
import time

import psutil

from tests.language_models.analyses import lasting, report, request

if __name__ == "__main__":
    kind, folder, options, *limits = sys.argv[1:]
    report(kind, request(kind, "sample:tiny-fp32"))  # load threads, libraries and their buffers first
    taken, hardest = psutil.Process().memory_info().vms, resource.getrlimit(resource.RLIMIT_AS)[1]
    results = []
    for limit in map(int, limits):
        resource.setrlimit(resource.RLIMIT_AS, (taken + limit if limit else hardest, hardest))
        started = time.perf_counter()
        found = report(kind, request(kind, folder, **json.loads(options)))
        results.append({"notes": [note.code for note in found.notes], "seconds": time.perf_counter() - started, "values": lasting(found)})
    print(json.dumps(results))
