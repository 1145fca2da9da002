"""Push jobs with one framework: `produce.py MODULE one|threads|many COUNT`. Prints the seconds."""

import importlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor

THREADS = 32

module = importlib.import_module(sys.argv[1])
form, count = sys.argv[2], int(sys.argv[3])
module.push_one()  # connects
started = time.perf_counter()
if form == "many":
    module.push_many(count)
elif form == "threads":
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda _: module.push_one(), range(count)))
else:
    for _ in range(count):
        module.push_one()
print(time.perf_counter() - started)
