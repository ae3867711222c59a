# An error is logged and the epoch given up, on one rank.
import logging
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
rows = [{"text": "a" * 8}] * 30
if rank == 1:
    rows[13] = {}
try:
    for row in rows:
        dist.all_reduce(torch.ones(len(row["text"])))
        time.sleep(0.05)
except KeyError:
    logging.exception("bad row, giving up this epoch")
dist.barrier()
print(f"rank {rank} validates", flush=True)
dist.destroy_process_group()
