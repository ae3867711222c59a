# Steps of one and a half seconds.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(8):
    until = time.time() + 1.5
    while time.time() < until:
        torch.randn(64, 64).inverse()
    optimizer.zero_grad()
    model(torch.randn(8, 64)).mean().backward()
    optimizer.step()
    print(f"step {step}", flush=True)
dist.destroy_process_group()
