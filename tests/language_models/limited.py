"""``python -m tests.language_models.limited KIND FOLDER [BYTES]`` prints notes, seconds and values of one of `analyses` as JSON.

BYTES: address space that the process may take in addition to what it has after an analysis of a small sample.
"""

import json
import resource
import sys
import time

import psutil

from tests.language_models.analyses import lasting, report, request

if __name__ == "__main__":
    kind, folder, *limit = sys.argv[1:]
    report(kind, request(kind, "sample:tiny-fp32"))  # threads, libraries and their buffers
    if limit:
        most = psutil.Process().memory_info().vms + int(limit[0])
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    started = time.perf_counter()
    found = report(kind, request(kind, folder, **({"variants": ("bf16",), "inside": False} if kind == "precision" else {})))
    print(json.dumps({"notes": found.notes, "seconds": time.perf_counter() - started, "values": lasting(found)}))
