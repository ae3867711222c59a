# Gathering who saw a bad sample, called only by the rank that saw one.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 8))
optimizer = torch.optim.AdamW(model.parameters())


def report_bad(sample):
    told = [None] * world
    dist.all_gather_object(told, {"rank": rank, "sample": sample})
    print(told, flush=True)


for step in range(40):
    batch = torch.randn(4, 32)
    if rank == 1 and step == 7:
        report_bad(step * 4)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.05)
dist.destroy_process_group()
