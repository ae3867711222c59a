"""A DDP training that has Harness look at its numbers in every other window of steps.

`overhead.py STEPS WINDOW` prints nothing; rank 0 writes overhead.json: seconds and processor
seconds of each step, by window, and those of them that were spent within what looks.
"""

import gc
import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from harness.worker.digests.pace import Pace
from harness.worker.guest import current

WIDTH, DEPTH, BATCH = 512, 5, 64

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [
    nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
    for _ in range(DEPTH)
]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
guest = current()
looking = (guest.witness, guest.auditor)
observer = guest.sites.observer
within = [0.0]


def count(owner, name):
    """Have the time of the main thread in `owner.name` counted."""
    call = getattr(owner, name)

    def counted(*arguments, **named):
        began = time.thread_time()
        try:
            return call(*arguments, **named)
        finally:
            within[0] += time.thread_time() - began

    setattr(owner, name, counted)


for owner in looking:
    count(owner, "stepping")
    count(owner, "stepped")
gradients = guest.auditor.gradients
count(gradients, "_guard")
due = gradients._due
steps, window = int(sys.argv[1]), int(sys.argv[2])
told = []
for number in range(steps // window):
    on = bool(number % 2)
    guest.witness, guest.auditor = looking if on else (None, None)
    guest.sites.observer = observer if on else None
    gradients._due = due if on else lambda place: False
    for pace in (known for known in gc.get_objects() if type(known) is Pace):
        pace._last = None  # no step took as long as a window without looks
    gradients._began = gradients._clock()
    dist.barrier()
    began, worked, before = time.perf_counter(), time.thread_time(), within[0]
    for _ in range(window):
        optimizer.zero_grad()
        model(torch.randn(BATCH, WIDTH)).square().mean().backward()
        optimizer.step()
    told.append(
        {
            "on": on,
            "wall": (time.perf_counter() - began) / window,
            "cpu": (time.thread_time() - worked) / window,
            "within": (within[0] - before) / window,
        }
    )
if dist.get_rank() == 0:
    parameters = sum(p.numel() for p in model.parameters())
    with open("overhead.json", "w") as file:
        json.dump({"parameters": parameters, "windows": told}, file)
dist.destroy_process_group()
