# Saving takes longer than the group's timeout.
import datetime
import os
import time

import torch
import torch.distributed as dist


def save_checkpoint(path):
    with open(path, "wb") as file:
        for _ in range(120):
            torch.save(torch.zeros(1 << 18), file)
            os.fsync(file.fileno())
            time.sleep(0.1)


dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()
for step in range(20):
    dist.all_reduce(torch.ones(64))
    if rank == 0 and step == 8:
        save_checkpoint("step8.pt")
    dist.barrier()
    time.sleep(0.05)
dist.destroy_process_group()
