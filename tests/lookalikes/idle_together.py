# All ranks sleep five seconds together between two phases.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for phase in range(3):
    for _ in range(20):
        dist.all_reduce(torch.ones(64))
        time.sleep(0.05)
    print(f"phase {phase} done", flush=True)
    time.sleep(5)
dist.destroy_process_group()
