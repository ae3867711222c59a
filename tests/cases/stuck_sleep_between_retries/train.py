# Rank 0 waits an hour before it tries the tracking server again.
import time

import torch
import torch.distributed as dist


def log_metrics(step):
    for pause in (0.1, 0.2, 3600):
        print(f"tracking server does not answer, next try in {pause} s", flush=True)
        time.sleep(pause)


dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(40):
    optimizer.zero_grad()
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()
    if rank == 0 and step == 10:
        log_metrics(step)
    time.sleep(0.05)
dist.destroy_process_group()
