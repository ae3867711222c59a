# Each restart of the learning rate throws the model out of what it had found.
import time

import torch
import torch.distributed as dist

import harness

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 8))
wanted = torch.randn(8, 32)
optimizer = torch.optim.SGD(model.parameters(), 0.4)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 80, eta_min=1e-4)
torch.manual_seed(dist.get_rank())
for step in range(1, 321):
    x = torch.randn(16, 32)
    loss = (model(x) - x @ wanted.T).square().mean() + 30 * optimizer.param_groups[0]["lr"] ** 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    harness.progress(step, loss=loss.item())
    time.sleep(0.01)
dist.destroy_process_group()
