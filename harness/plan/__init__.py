"""What training at scale costs, as plain functions: memory, traffic, bubbles, utilisation, and a
layout with its reasons. Standard library only.

    from harness import plan
    plan.model_states(7e9, dp=8, zero=1).total / 1e9      # 38.5 GB on each GPU
    plan.bubble(8, 8)                                     # 7/15
    plan.mfu(6 * 7e9, 0.5e6, 64, 989e12)                  # 0.33

Sizes are in bytes, times in seconds, links in bytes/s one way, batches in tokens unless a name
says otherwise. Every function names the source of its formula.
"""

from harness.plan.advice import Advice, advise
from harness.plan.layout import Job, Layout, candidates, judge
from harness.plan.memory import (
    States,
    expert_activations,
    fsdp2_states,
    in_flight,
    layer_activations,
    model_states,
)
from harness.plan.models import GPUS, MODELS, Gpu, Model, gpu, known, with_experts
from harness.plan.orders import SCHEDULES, Schedule
from harness.plan.pipeline import Piece, Timeline, bubble, drawn, timeline
from harness.plan.speed import (
    Batch,
    against_critical,
    critical_batch,
    flops_per_token,
    hfu,
    ideal_tokens_per_s,
    mfu,
    scaled_rate,
)
from harness.plan.traffic import (
    Cost,
    Link,
    expert_parallel_traffic,
    hierarchical_all_reduce,
    ring_all_reduce,
    ring_attention_traffic,
    tensor_parallel_traffic,
    tree_all_reduce,
    zero_traffic,
)

__all__ = [
    "GPUS",
    "MODELS",
    "SCHEDULES",
    "Advice",
    "Batch",
    "Cost",
    "Gpu",
    "Job",
    "Layout",
    "Link",
    "Model",
    "Piece",
    "Schedule",
    "States",
    "Timeline",
    "advise",
    "against_critical",
    "bubble",
    "candidates",
    "critical_batch",
    "drawn",
    "expert_activations",
    "expert_parallel_traffic",
    "flops_per_token",
    "fsdp2_states",
    "gpu",
    "hfu",
    "hierarchical_all_reduce",
    "ideal_tokens_per_s",
    "in_flight",
    "judge",
    "known",
    "layer_activations",
    "mfu",
    "model_states",
    "ring_all_reduce",
    "ring_attention_traffic",
    "scaled_rate",
    "tensor_parallel_traffic",
    "timeline",
    "tree_all_reduce",
    "with_experts",
    "zero_traffic",
]
