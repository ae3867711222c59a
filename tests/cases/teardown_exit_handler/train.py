# The exit handler of rank 0 waits for a server to take the last metrics.
import atexit
import socket
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
server = socket.create_server(("127.0.0.1", 0))


def finish():
    with socket.create_connection(server.getsockname()) as connection:
        connection.sendall(b"done")
        connection.recv(1)


if rank == 0:
    atexit.register(finish)
for step in range(12):
    dist.all_reduce(torch.ones(16))
    time.sleep(0.05)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
