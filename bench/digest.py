"""How fast digests are beside a plain read of the same memory, and what they see.

`python bench/digest.py [--device cuda] [--rounds N] [--quick] [--write]`

On the CPU, in one process with one thread, contenders taking turns:
- plain read: libc's wmemchr looks through every tensor for a number that is not there;
- numpy: sum of the 64-bit words; torch.hash_tensor where the type has it, and on the words;
- Megatron-LM's check of replicas: every tensor .float(), SHA-1;
- ours: rows, rows and columns.
Seconds are CPU time of the thread, so that neighbours count less; ratios are medians over rounds of
what the same round's plain read took. Then thousands of corruptions and of clean comparisons.
`--write` puts the tables into bench/results/digest.md, on a GPU into digest-cuda.md.
"""

import argparse
import ctypes
import hashlib
import platform
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness.digest.plan import Plan  # noqa: E402
from harness.digest.words import words  # noqa: E402

RESULTS = Path(__file__).with_name("results")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64)
ABSENT = 0x7F7F7F7F
"""A 32-bit pattern that the numbers below do not hold; as a float 3.4e38."""
TIMES = 160
"""Corruptions of each pattern and type."""

Named = Sequence[tuple[str, torch.Tensor]]
Act = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--quick", action="store_true", help="small tensors, few corruptions")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.device == "cuda":
        lines = ["# Digests on a GPU", "", *setting(), "", *on_gpu(options)]
    else:
        lines = ["# Digests", "", *setting(), "", *types(options), "", *models(options), ""]
        lines += seen(options)
    print("\n".join(lines))
    if options.write:
        name = "digest.md" if options.device == "cpu" else "digest-cuda.md"
        (RESULTS / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def setting() -> list[str]:
    return [
        f"`python bench/digest.py`: Python {platform.python_version()}, torch {torch.__version__}, "
        "one thread. GB/s, and beside",
        "it the part of the plain read in the same round (median).",
    ]


def some(dtype: torch.dtype, count: int, device: str = "cpu") -> torch.Tensor:
    if dtype is torch.int64:
        return torch.randint(-(1 << 40), 1 << 40, (count,), device=device)
    return torch.randn(count, device=device).to(dtype)


def model(width: int, layers: int, vocabulary: int, context: int, dtype: torch.dtype) -> Named:
    """The parameters of a GPT-2 of that size, as Radford et al. 2019 have them."""
    block = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,)]
    block += [(width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    shapes = [(vocabulary, width), (context, width), *block * layers, (width,), (width,)]
    return [(str(k), torch.randn(shape).to(dtype)) for k, shape in enumerate(shapes)]


def plain_read(named: Named) -> Act:
    """Every byte is looked at once, at the speed of the machine; SystemExit if one was skipped."""
    search = ctypes.CDLL(None).wmemchr
    search.restype = ctypes.c_void_p
    search.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    where = [(tensor.data_ptr(), tensor.nbytes // 4) for _, tensor in named]

    def read() -> None:
        for begin, count in where:
            if search(begin, ABSENT, count):
                sys.exit("the plain read stopped early")

    return read


def megatron(named: Named) -> Act:
    """One hash for each parameter, as its check_param_hashes_across_dp_replicas takes it."""

    def hashes() -> list[bytes]:
        return [hashlib.sha1(t.cpu().float().numpy().data).digest() for _, t in named]

    return hashes


def contenders(named: Named) -> dict[str, Act]:
    of = Plan(named)
    rows = [words(tensor) for _, tensor in named]
    arrays = [row.numpy() for row in rows]
    found: dict[str, Act] = {
        "rows": of.rows,
        "rows and columns": of.rows_and_columns,
        "numpy sum": lambda: [array.sum() for array in arrays],
        "hash_tensor of words": lambda: [torch.hash_tensor(row) for row in rows],
        "hash_tensor": lambda: [torch.hash_tensor(t) for _, t in named],
        "Megatron": megatron(named),
    }
    try:
        found["hash_tensor"]()
    except (NotImplementedError, RuntimeError):
        del found["hash_tensor"]  # float8 has none
    return found


def turns(
    named: Named, acts: Mapping[str, Act], rounds: int, between: Act = lambda: None
) -> dict[str, tuple[float, float]]:
    """Median seconds of each, and how it stands to the plain read just before it.

    The first turn does not count; those that take long take fewer.
    """
    read = plain_read(named)
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in acts}
    for turn in range(rounds + 1):
        for name, act in acts.items():
            if name in ("hash_tensor", "Megatron") and turn > max(3, rounds // 4):
                continue
            times = []
            for each in (act, read):
                between()
                began = time.thread_time()
                each()
                times.append(time.thread_time() - began)
            pairs[name].append((times[0], times[1]))
    bases = [base for those in pairs.values() for _, base in those[1:]]
    found = {"plain read": (statistics.median(bases), 1.0)}
    for name, those in pairs.items():
        mine = statistics.median(own for own, _ in those[1:])
        found[name] = mine, statistics.median(base / own for own, base in those[1:])
    return found


def types(options: argparse.Namespace) -> Iterator[str]:
    """A large tensor of every type."""
    size = 1 << (24 if options.quick else 27)
    results = {}
    for dtype in DTYPES:
        named = [("a", some(dtype, size // dtype.itemsize))]
        results[dtype] = turns(named, contenders(named), options.rounds)
    names = list(results[torch.float32])
    yield f"## One tensor of {size >> 20} MiB"
    yield ""
    yield f"| | {' | '.join(str(d).removeprefix('torch.') for d in DTYPES)} |"
    yield "|---" * (len(DTYPES) + 1) + "|"
    for name in names:
        cells = [cell(size, results[dtype].get(name)) for dtype in DTYPES]
        yield f"| {name} | {' | '.join(cells)} |"


def cell(size: int, result: tuple[float, float] | None) -> str:
    return "none" if result is None else f"{size / result[0] / 1e9:.2f} ({result[1]:.2f})"


MODELS: dict[str, tuple[int, int, int, int, torch.dtype]] = {
    "tiny": (128, 4, 1024, 128, torch.float32),
    "small": (256, 6, 4096, 256, torch.float32),
    "gpt2-small": (768, 12, 50257, 1024, torch.bfloat16),
}


def models(options: argparse.Namespace) -> Iterator[str]:
    """Whole models: many tensors, small ones among them."""
    names = ["rows", "rows and columns", "numpy sum", "Megatron", "fold", "rebind", "plan"]
    yield "## Models"
    yield ""
    yield "Milliseconds. `again`: one measurement after the other, so that what fits stays in the"
    yield "cache. `cold`: 64 MiB of other memory are written before each, as a training step would."
    yield "What comes beside `rows`: `fold`, 64 bits from the buckets; `rebind`, other tensors of"
    yield "the same kind; `plan`, once."
    yield ""
    yield f"| model | | plain read | {' | '.join(names)} |"
    yield "|---" * (len(names) + 3) + "|"
    other = torch.ones(1 << 23, dtype=torch.int64)
    for name, arguments in MODELS.items():
        if options.quick and name == "gpt2-small":
            continue
        named = model(*arguments)
        acts = {n: act for n, act in contenders(named).items() if n in names} | around(named)
        title = f"{name}: {len(named)} tensors, {sum(t.nbytes for _, t in named) / 1e6:.1f} MB"
        for state, between in (("again", lambda: None), ("cold", lambda: other.add_(1))):
            results = turns(named, acts, options.rounds, between)
            cells = [f"{results['plain read'][0] * 1e3:.3f}"]
            cells += [f"{results[n][0] * 1e3:.3f} ({results[n][1]:.2f})" for n in names[:4]]
            cells += [f"{results[n][0] * 1e3:.3f}" for n in names[4:]]
            yield f"| {title} | {state} | {' | '.join(cells)} |"


def around(named: Named) -> dict[str, Act]:
    """What is done beside reading."""
    of, tensors = Plan(named), [tensor for _, tensor in named]
    vector = of.rows()
    return {
        "fold": lambda: of.fold(vector),
        "rebind": lambda: of.rebind(tensors),
        "plan": lambda: Plan(named),
    }


def seen(options: argparse.Namespace) -> Iterator[str]:
    """Corruptions that every check missed, and clean comparisons."""
    from tests.digest.campaign import clean_comparisons, corruptions

    times = 4 if options.quick else TIMES
    tried: Counter[str] = Counter()
    missed: dict[str, Counter[str]] = {}
    for dtype in DTYPES:
        tally = corruptions(dtype, times, seed=5, others=known_checks)
        tried += tally.tried
        for check, counts in tally.missed.items():
            missed.setdefault(check, Counter()).update(counts)
    total = sum(tried.values())
    clean = len(DTYPES) * 15 * times
    alarms = sum(clean_comparisons(dtype, 15 * times, seed=6) for dtype in DTYPES)
    yield f"## {total} corruptions"
    yield ""
    yield f"{len(tried)} patterns, {len(DTYPES)} types, {times} of each, on tensors of a small"
    yield "model: how many each check **missed**."
    yield ""
    yield f"| pattern | tried | {' | '.join(missed)} |"
    yield "|---" * (len(missed) + 2) + "|"
    for pattern, count in tried.items():
        cells = [str(missed[check][pattern]) for check in missed]
        yield f"| {pattern} | {count} | {' | '.join(cells)} |"
    cells = [f"**{sum(missed[check].values())}**" for check in missed]
    yield f"| all | {total} | {' | '.join(cells)} |"
    yield ""
    yield f"Of {clean} comparisons of clean replicas at other addresses, each after an update of"
    yield f"both, **{alarms}** raised an alarm."


def known_checks(tensors: dict[str, torch.Tensor]) -> dict[str, object]:
    """What stands beside ours: a sum of words, and PyTorch's hash of words."""
    rows = [words(tensor) for tensor in tensors.values()]
    return {
        "sum of words": [int(row.sum()) for row in rows],
        "hash_tensor of words": [torch.hash_tensor(row).view(torch.int64).item() for row in rows],
    }


def on_gpu(options: argparse.Namespace) -> Iterator[str]:
    """Rows and columns beside a plain read and a copy, by the clock of the device."""
    if not torch.cuda.is_available():
        sys.exit("bench/digest.py: --device cuda: there is no GPU here that PyTorch can use")
    size = min(1 << (26 if options.quick else 32), torch.cuda.mem_get_info()[0] // 8 >> 20 << 20)
    yield f"{torch.cuda.get_device_name()}: one tensor of {size >> 20} MiB, and layers of width"
    yield "4096 of as much. The plain read is the sum of the same memory as float32. `beside`: rows"
    yield "on a stream of their own, until they are on the host."
    yield ""
    yield "| | plain read | rows | rows and columns | beside |"
    yield "|---|---|---|---|---|"
    layer = [(4096, 4096), (4096,), (4096, 4096), (11008, 4096), (4096,)]
    bytes_of_layer = 2 * sum(torch.Size(shape).numel() for shape in layer)
    shapes = layer * max(1, size // bytes_of_layer)
    bfloat16 = torch.bfloat16
    many = [(str(k), torch.randn(s, device="cuda").to(bfloat16)) for k, s in enumerate(shapes)]
    for title, named in (
        ("bfloat16", [("a", some(bfloat16, size // 2, "cuda"))]),
        (f"{len(many)} tensors, bfloat16", many),
    ):
        total = sum(tensor.nbytes for _, tensor in named)
        cells = []
        base = 0.0
        for act in gpu_contenders(named):
            taken = statistics.median(gpu_seconds(act) for _ in range(options.rounds))
            base = base or taken
            cells.append(f"{total / taken / 1e9:.0f} ({base / taken:.2f})")
        yield f"| {title} | {' | '.join(cells)} |"


def gpu_contenders(named: Named) -> list[Act]:
    from harness.digest.device import Beside

    of, beside = Plan(named), Beside(Plan(named))
    floats = [words(tensor).view(torch.float32) for _, tensor in named]

    def read() -> None:
        for row in floats:
            row.sum()

    def aside() -> None:
        beside.start(0)
        beside.guard()
        torch.cuda.synchronize()
        beside.take()

    return [read, of.rows, of.rows_and_columns, aside]


def gpu_seconds(act: Act) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    begin.record()
    act()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


if __name__ == "__main__":
    main()
