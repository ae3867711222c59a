# A thread of the script prepares batches; once, the storage behind it takes 6 s.
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
        if rank == 1 and index == 30:
            time.sleep(6)
        batches.put(torch.full((8,), float(index)))


threading.Thread(target=prepare, daemon=True).start()
for _ in range(60):
    batch = batches.get()
    dist.all_reduce(batch)
    time.sleep(0.06)
dist.destroy_process_group()
