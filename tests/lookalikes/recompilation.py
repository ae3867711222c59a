# In mid-run one rank compiles for a new shape, deep inside a compiler's own module.
import importlib.util
import pathlib
import sys
import time

import torch
import torch.distributed as dist

COMPILER = """
import time
def lower(graph, seconds):
    until = time.time() + seconds
    while time.time() < until:
        graph = sorted(graph, reverse=True)
"""
folder = pathlib.Path("site-packages") / "torch" / "_inductor"
folder.mkdir(parents=True, exist_ok=True)
dist.init_process_group("gloo")
rank = dist.get_rank()
path = folder / f"codegen{rank}.py"
path.write_text(COMPILER)
spec = importlib.util.spec_from_file_location("codegen", path)
codegen = sys.modules["codegen"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(codegen)
for step in range(30):
    if rank == 1 and step == 15:
        codegen.lower(list(range(1000)), 6)
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
dist.destroy_process_group()
