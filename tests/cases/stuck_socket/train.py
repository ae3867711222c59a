# A feature server accepts the request and never answers.
import socket
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
server = socket.create_server(("127.0.0.1", 0))


def features(step):
    with socket.create_connection(server.getsockname()) as connection:
        connection.sendall(b"GET %d\n" % step)
        return len(connection.recv(4096))


for step in range(30):
    size = features(step) if rank == 2 and step == 9 else 16
    dist.all_reduce(torch.ones(8) * size)
    time.sleep(0.05)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
