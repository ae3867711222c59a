# Four seconds between two epochs, on all ranks: the data set is shuffled and opened again.
import random
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for epoch in range(3):
    order, until = list(range(20_000)), time.time() + 4
    while time.time() < until:
        random.shuffle(order)
    for _ in range(25):
        dist.all_reduce(torch.ones(64))
        time.sleep(0.04)
    print(f"epoch {epoch} done", flush=True)
dist.destroy_process_group()
