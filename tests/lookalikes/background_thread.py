# A thread that never does anything, and a child process that does as little.
import subprocess
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
threading.Thread(target=threading.Event().wait, name="heartbeat", daemon=True).start()
helper = subprocess.Popen(["sleep", "60"])
for _ in range(60):
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
helper.terminate()
helper.wait()
dist.destroy_process_group()
