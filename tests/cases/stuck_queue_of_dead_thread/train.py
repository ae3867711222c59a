# The thread that prepares batches died of an error; the training thread waits for its queue.
import queue
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
batches = queue.Queue(maxsize=2)


def prepare():
    for index in range(60):
        if rank == 1 and index == 12:
            raise ValueError(f"sample {index} is empty")
        batches.put(torch.full((8,), float(index)))


threading.Thread(target=prepare, daemon=True).start()
for step in range(40):
    batch = batches.get()
    dist.all_reduce(batch)
    time.sleep(0.06)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
