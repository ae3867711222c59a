# All ranks compile for eight seconds before their first collective.
import time

import torch
import torch.distributed as dist


def compile_model():
    until = time.time() + 8
    while time.time() < until:
        sum(i * i for i in range(5000))


dist.init_process_group("gloo")
compile_model()
for step in range(30):
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
    print(f"step {step}", flush=True)
dist.destroy_process_group()
