# SPDX-License-Identifier: MIT
"""The protocol of ops.hpp in Python: prints the names of tasks, then, for each name that it reads, the task's seconds."""
import sys
import time


def seconds_of(run, finish=lambda: None, least=0.01):
    def seconds(repeats):
        finish()
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        finish()
        return (time.perf_counter() - start) / repeats

    once = seconds(1)
    return once if once >= least else seconds(int(least / once) + 1)


def serve(tasks):
    print("\n".join(tasks) + "\n", flush=True)
    for line in sys.stdin:
        print(f"{seconds_of(tasks[line.rstrip()]):.9f}", flush=True)
