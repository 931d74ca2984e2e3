# SPDX-License-Identifier: MIT
"""Milliseconds of PyTorch's gloo collectives between processes: torch_gloo.py RANKS. Prints the lines of collectives.cpp."""
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, n):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29517", rank=rank, world_size=n)
    size = 1024
    while size <= 256 << 20:
        elements = size // 4 // n * n
        whole, part = torch.ones(elements), torch.ones(elements // n)
        parts = list(whole.chunk(n))
        rounds = 5 if size >= 1 << 24 else 30 if size >= 1 << 20 else 300
        for name, collective in (("all_reduce", lambda: dist.all_reduce(whole)), ("all_gather", lambda: dist.all_gather(parts, part))):
            for _ in range(2):
                collective()
            dist.barrier()
            start = time.perf_counter()
            for _ in range(rounds):
                collective()
            if rank == 0:
                print(name, size, f"{(time.perf_counter() - start) * 1e3 / rounds:.6f}", flush=True)
        size *= 4
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, args=(int(sys.argv[1]),), nprocs=int(sys.argv[1]))
