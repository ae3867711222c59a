# One rank asks a licence server that is not there, before it joins the others.
import os
import socket
import time

import torch
import torch.distributed as dist


def licence():
    while True:
        try:
            return socket.create_connection(("127.0.0.1", 9), timeout=1)
        except OSError:
            time.sleep(1)


if os.environ["RANK"] == "1":
    licence()
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(10):
    dist.all_reduce(torch.ones(4))
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
