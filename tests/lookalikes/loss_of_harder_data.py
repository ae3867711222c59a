# A curriculum: every hundred steps the data become noisier, and what was learnt is worth less.
import time

import torch
import torch.distributed as dist

import harness

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 8))
tasks = [torch.randn(8, 32) for _ in range(3)]
optimizer = torch.optim.Adam(model.parameters(), 0.02)
torch.manual_seed(dist.get_rank())
for step in range(1, 331):
    task = min(2, step // 110)
    x = torch.randn(16, 32)
    target = x @ tasks[task].T + task * torch.randn(16, 8)
    loss = (model(x) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    harness.progress(step, loss=loss.item())
    time.sleep(0.01)
dist.destroy_process_group()
