"""DDP steps of a chosen length: `paired.py STEPS MILLISECONDS`; the length is a sleep.

Rank 0 writes steps.json: seconds of each step, processor seconds of the whole process a step. The
first fifth of the steps is not counted.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

STEPS, PAUSE = int(sys.argv[1]), float(sys.argv[2]) / 1000

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 8)))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
took: list[float] = []
worked = 0.0
for step in range(STEPS):
    if step == STEPS // 5:
        worked = time.process_time()
    began = time.perf_counter()
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    time.sleep(PAUSE)
    optimizer.step()
    took.append(time.perf_counter() - began)
worked = (time.process_time() - worked) / (STEPS - STEPS // 5)
if dist.get_rank() == 0:
    with open("steps.json", "w") as file:
        json.dump({"seconds": took[STEPS // 5 :], "cpu": worked}, file)
dist.destroy_process_group()
