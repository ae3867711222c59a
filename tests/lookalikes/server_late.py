# A rank waits for a server that takes its time, and says nothing meanwhile.
import socket
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
port = torch.zeros(1, dtype=torch.long)
if rank == 2:
    server = socket.create_server(("127.0.0.1", 0))
    port[0] = server.getsockname()[1]

    def answer():
        connection, _ = server.accept()
        time.sleep(6)
        connection.send(b"x")

    threading.Thread(target=answer, daemon=True).start()
dist.broadcast(port, 2)
for step in range(40):
    gradient = torch.ones(8)
    dist.all_reduce(gradient)
    time.sleep(0.02)
    if step == 20 and rank == 0:
        with socket.create_connection(("127.0.0.1", int(port))) as connection:
            connection.recv(1)
dist.destroy_process_group()
