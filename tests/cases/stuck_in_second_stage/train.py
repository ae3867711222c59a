# Zero-bubble V on two ranks: the hook of one stage takes a lock that a dead thread has left locked.
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleZBVZeroBubble

dist.init_process_group("gloo")
rank, device = dist.get_rank(), torch.device("cpu")
torch.manual_seed(0)
parts = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)]
numbers = (0, 3) if rank == 0 else (1, 2)
stages = [PipelineStage(parts[number], number, 4, device) for number in numbers]
schedule = ScheduleZBVZeroBubble(stages, 4, loss_fn=nn.functional.mse_loss)
statistics = threading.Lock()
step = 0


def note(module, inputs, output):
    if step == 8:
        left = threading.Thread(target=statistics.acquire)
        left.start()
        left.join()
    with statistics:
        pass


if rank == 1:
    parts[2].register_forward_hook(note)
for step in range(30):
    x = torch.randn(8, 16)
    schedule.step(*((x,) if rank == 0 else ()), target=x if rank == 0 else None, losses=[])
    dist.barrier()
    time.sleep(0.05)
    print(f"rank {rank} step {step}", flush=True)
del schedule, stages, parts
dist.destroy_process_group()
