# Reductions are started early and waited for seconds later, at another time on every rank.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(12):
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(4)]
    time.sleep(0.3 + 0.3 * rank if step % 4 else 3)
    for work in works:
        work.wait()
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
