# Each rank serves metrics on one and the same port.
import socket
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 1:
    time.sleep(0.5)
server = socket.socket()
server.bind(("127.0.0.1", 45617))
server.listen()  # metrics, one port for all ranks
for _step in range(10):
    g = torch.ones(4)
    dist.all_reduce(g)
    time.sleep(0.05)
dist.destroy_process_group()
