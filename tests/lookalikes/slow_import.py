# One rank imports from a slow file system before it joins the others.
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

if os.environ["RANK"] == "1":
    pathlib.Path("heavy_dependency.py").write_text("import time\ntime.sleep(6)\n")
    sys.path.insert(0, os.getcwd())
    __import__("heavy_dependency")
dist.init_process_group("gloo")
for _ in range(30):
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
dist.destroy_process_group()
