# The training thread and a metrics thread take two locks in opposite order.
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
queue_lock, file_lock, reached = threading.Lock(), threading.Lock(), threading.Event()


def flush():
    with file_lock:
        reached.set()
        time.sleep(0.2)
        with queue_lock:
            print("flushed", flush=True)


for step in range(30):
    dist.all_reduce(torch.ones(32))
    if rank == 2 and step == 8:
        threading.Thread(target=flush, daemon=True).start()
        with queue_lock:
            reached.wait()
            with file_lock:
                print("queued", flush=True)
    time.sleep(0.06)
dist.destroy_process_group()
