"""``python -m tests.language_models.limited KIND FOLDER BYTES OPTIONS`` prints notes, seconds and values of one of `analyses` as JSON.

BYTES: address space that the process may take in addition to what it has after an analysis of a small sample; 0 for no limit. OPTIONS: more
of the request, as JSON.
"""

import json
import resource
import sys
import time

import psutil

from tests.language_models.analyses import lasting, report, request

if __name__ == "__main__":
    kind, folder, limit, options = sys.argv[1:]
    report(kind, request(kind, "sample:tiny-fp32"))  # threads, libraries and their buffers
    if int(limit):
        most = psutil.Process().memory_info().vms + int(limit)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    started = time.perf_counter()
    found = report(kind, request(kind, folder, **json.loads(options)))
    print(json.dumps({"notes": found.notes, "seconds": time.perf_counter() - started, "values": lasting(found)}))
