"""Corruptions and clean comparisons by the thousand: how many were seen, how many false alarms."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from harness.digest.plan import Plan
from harness.digest.words import bits
from tests.digest.corruptions import PATTERNS, corrupt
from tests.digest.replicas import plan, replica


@dataclass(slots=True)
class Tally:
    """By pattern; `missed` by the name of the check."""

    tried: Counter[str] = field(default_factory=Counter)
    missed: dict[str, Counter[str]] = field(default_factory=dict)


def ours(of: Plan) -> dict[str, object]:
    """What is compared, by name: rows, rows and columns, and 64 bits of each."""
    rows, columns = (part.clone() for part in of.rows_and_columns())
    folds = of.fold(rows), of.fold_columns(columns)
    return {"rows": rows, "rows and columns": (rows, columns), "64 bits of both": folds}


def same(a: object, b: object) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    return a == b


def corruptions(
    dtype: torch.dtype,
    times: int,
    seed: int,
    others: Callable[[dict[str, torch.Tensor]], dict[str, object]] = lambda tensors: {},
) -> Tally:
    """Each pattern `times` times on a random tensor of a small model, one after the other."""
    tensors = replica(dtype, seed)
    of = plan(tensors)
    clean = {**ours(of), **others(tensors)}
    draw = random.Random(f"{dtype} {seed}")
    tally = Tally(missed={name: Counter() for name in clean})
    large = [name for name, tensor in tensors.items() if tensor.nbytes > 1000]
    for pattern in PATTERNS:
        for _ in range(times):
            victim = tensors[draw.choice(large)]
            before = corrupt(victim, pattern, draw)
            tally.tried[pattern] += 1
            for name, found in {**ours(of), **others(tensors)}.items():
                tally.missed[name][pattern] += same(found, clean[name])
            bits(victim).copy_(before)
    return tally


def clean_comparisons(dtype: torch.dtype, times: int, seed: int) -> int:
    """Two replicas at other addresses through the same random updates: how often they differed."""
    left, right = replica(dtype, seed), replica(dtype, seed, apart=2)
    plans = plan(left), plan(right)
    if plans[0].plan_hash != plans[1].plan_hash:
        return times
    draw = random.Random(seed)
    alarms = 0
    for _ in range(times):
        name = draw.choice(list(left))
        place = draw.randrange(left[name].numel())
        for tensors in (left, right):
            bits(tensors[name]).as_strided((left[name].numel(),), (1,))[place] ^= 1
        sums = [tuple(part.clone() for part in of.rows_and_columns()) for of in plans]
        alarms += not same(*sums)
    return alarms
