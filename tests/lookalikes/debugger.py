# Someone attaches a debugger to one rank, looks around for six seconds and detaches.
import ctypes
import os
import time

import torch
import torch.distributed as dist

ATTACH, DETACH, WAIT_FOR_ALL = 16, 17, 0x40000000
dist.init_process_group("gloo")
rank = dist.get_rank()
child = 0
for step in range(40):
    dist.all_reduce(torch.ones(64))
    time.sleep(0.06)
    if rank == 1 and step == 14:
        ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
        child = os.fork()
        if child == 0:
            ptrace, target = ctypes.CDLL(None).ptrace, os.getppid()
            if ptrace(ATTACH, target, None, None) == 0:
                os.waitpid(target, WAIT_FOR_ALL)
                time.sleep(6)
                ptrace(DETACH, target, None, None)
            os._exit(0)
if child:
    os.waitpid(child, 0)
dist.destroy_process_group()
