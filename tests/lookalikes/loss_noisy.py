# A loss with outliers, bursts that heal, and a slow wander.
import random
import time

import torch
import torch.distributed as dist

import harness

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
draw, drift = random.Random(dist.get_rank()), 0.0
for step in range(1, 241):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    drift = 0.95 * drift + draw.gauss(0, 0.2)
    loss = 2 + 8 * 0.96**step + abs(drift) + draw.lognormvariate(-2, 1.5)
    if 150 <= step < 162:
        loss += 25
    harness.progress(step, loss=loss)
    time.sleep(0.01)
dist.destroy_process_group()
