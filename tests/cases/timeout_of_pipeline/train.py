# The second stage gives up on the first, which reads and parses its data.
import datetime
import json
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()


def load_chunk(seconds):
    until = time.time() + seconds
    while time.time() < until:
        json.loads(json.dumps(list(range(5000))))


activation = torch.ones(32)
for step in range(20):
    if rank == 0:
        load_chunk(14 if step == 8 else 0.05)
        dist.send(activation, 1)
    else:
        dist.recv(activation, 0)
    print(f"stage {rank} step {step}", flush=True)
dist.destroy_process_group()
