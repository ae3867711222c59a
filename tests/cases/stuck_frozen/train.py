# Something stops a rank and never lets it go on.
import os
import signal
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(40):
    optimizer.zero_grad()
    model(torch.randn(4, 16)).sum().backward()
    if rank == 2 and step == 12:
        os.kill(os.getpid(), signal.SIGSTOP)
    optimizer.step()
    time.sleep(0.05)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
