# Two DDP models with an optimizer each; running statistics, dropout, an average on rank 0, frozen
# layers, accumulation, clipping and a parameter that is used now and then: all of it legal.
import contextlib
import copy

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
Ddp = nn.parallel.DistributedDataParallel
body = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.3), nn.Linear(32, 16))
body[0].bias.requires_grad_(False)
generator, critic = Ddp(body), Ddp(nn.Linear(16, 1), find_unused_parameters=True)
makers = torch.optim.Adam(generator.parameters(), 1e-3), torch.optim.SGD(critic.parameters(), 0.01)
average = copy.deepcopy(body) if rank == 0 else None
for step in range(60):
    for micro in range(2):
        models = (generator, critic)
        with contextlib.ExitStack() as stack:
            if micro == 0:
                [stack.enter_context(model.no_sync()) for model in models]
            critic(generator(torch.randn(8, 16))).square().mean().backward()
    nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
    makers[1].step()
    if step % 3 == 0:
        makers[0].step()
    for maker in makers:
        maker.zero_grad()
    if average is not None:
        for kept, new in zip(average.parameters(), body.parameters(), strict=True):
            kept.data.lerp_(new.data, 0.1)
    if step % 10 == 5:  # weights are clipped by hand, on all ranks
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.clamp_(-0.1, 0.1)
dist.destroy_process_group()
