# Rank 0 writes a checkpoint to slow storage while the others wait in the next collective.
import os
import time

import torch
import torch.distributed as dist


def save_checkpoint(model, path):
    with open(path, "wb") as file:
        torch.save(model.state_dict(), file)
        file.flush()
        os.fsync(file.fileno())
    time.sleep(6)


dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(30):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    time.sleep(0.05)
    if rank == 0 and step == 15:
        save_checkpoint(model, "step15.pt")
dist.destroy_process_group()
