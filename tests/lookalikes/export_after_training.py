# After the groups are gone, rank 1 still converts the model for six seconds.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for _ in range(30):
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
dist.barrier()
dist.destroy_process_group()
if rank == 1:
    until = time.time() + 6
    while time.time() < until:
        torch.save(torch.randn(1 << 18), "export.pt")
    print("exported", flush=True)
