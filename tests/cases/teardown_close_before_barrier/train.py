# After the last step a rank waits for its writer thread, the others for it in the last barrier.
import queue
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
entries = queue.Queue()


def writer():
    while entries.get() is not None:
        pass


thread = threading.Thread(target=writer, daemon=True)
thread.start()
for step in range(12):
    dist.all_reduce(torch.ones(16))
    entries.put(step)
    time.sleep(0.05)
if rank != 2:
    entries.put(None)
thread.join()
dist.barrier()
dist.destroy_process_group()
