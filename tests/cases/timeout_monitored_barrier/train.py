# A monitored barrier gives up on a rank that still evaluates.
import datetime
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(128, 128)


def evaluate(seconds):
    until = time.time() + seconds
    while time.time() < until:
        model(torch.randn(64, 128))


for step in range(20):
    dist.all_reduce(torch.ones(64))
    if step % 5 == 4:
        evaluate(12 if rank == 1 and step == 9 else 0.1)
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=4))
    time.sleep(0.05)
dist.destroy_process_group()
