# A child forked while a thread held a lock waits for that lock; its parent waits for the child.
import os
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
lock, held = threading.Lock(), threading.Event()


def write_log():
    with lock:
        held.set()
        time.sleep(1)


for step in range(30):
    dist.all_reduce(torch.ones(8))
    if rank == 2 and step == 7:
        threading.Thread(target=write_log).start()
        held.wait()
        if (child := os.fork()) == 0:
            lock.acquire()
            os._exit(0)
        os.waitpid(child, 0)
    time.sleep(0.06)
dist.destroy_process_group()
