"""Whether a model may be computed once more without anybody noticing, and how nothing is left."""

import contextlib
import random
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

_SPEAKS = frozenset(
    {
        "print", "input", "open", "write", "info", "debug", "warning", "logger", "logging",
        "add_scalar", "wandb", "put", "send", "recv", "next",
    }
)  # fmt: skip
"""Names in a forward that does more than compute."""
_MOST_NODES = 200_000
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def why_not(module: Any, *, cut: bool = False) -> str:
    """Why `module` is not computed again; empty when it is. `cut`: it may be cut over ranks."""
    torch = sys.modules["torch"]
    for each in module.modules():
        kind = type(each)
        if kind.__name__ == "OptimizedModule" or getattr(each, "_compiled_call_impl", None):
            return "it is compiled"
        if "SyncBatchNorm" in kind.__name__:
            return "it talks to other ranks"
        hooks = [hook for name in _HOOKS for hook in getattr(each, name, {}).values()]
        if any(not str(getattr(hook, "__module__", "")).startswith("torch") for hook in hooks):
            return "it has hooks"
        code = getattr(kind.forward, "__code__", None)
        outside = not kind.__module__.startswith("torch.")
        if outside and (code is None or _SPEAKS & {*code.co_names}):
            return "its forward does more than compute"
    for parameter in module.parameters():
        if hasattr(parameter, "_local_tensor") and not cut:
            return "its parameters are cut"
        if parameter.layout is not torch.strided:
            return "its parameters are not dense"
        if parameter._backward_hooks:
            return "its parameters have hooks"
    return ""


def conditions(module: Any) -> str:
    """What must be alike for two computations to give the same bits."""
    torch = sys.modules["torch"]
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    device = next((str(p.device.type) for p in module.parameters()), "")
    said = [
        torch.__version__, torch.get_num_threads(), torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(), torch.backends.mkldnn.enabled,
        torch.backends.cpu.get_cpu_capability(), torch.get_default_dtype(), device,
        torch.backends.cudnn.benchmark, torch.cuda.get_device_name() if cuda else "",
        [each.training for each in module.modules()], autocast_state(),
    ]  # fmt: skip
    return repr(said)


def autocast_state() -> list[tuple[str, bool, str]]:
    torch = sys.modules["torch"]
    return [
        (kind, torch.is_autocast_enabled(kind), str(torch.get_autocast_dtype(kind)))
        for kind in ("cpu", "cuda")
    ]


@contextlib.contextmanager
def autocast(state: list[tuple[str, bool, str]]) -> Iterator[None]:
    torch = sys.modules["torch"]
    with contextlib.ExitStack() as stack:
        for kind, enabled, name in state:
            if enabled:
                dtype = getattr(torch, name.removeprefix("torch."))
                stack.enter_context(torch.autocast(kind, dtype=dtype))
        yield


def random_state() -> dict[str, Any]:
    """Of torch, on the CPU and on this rank's GPU."""
    torch = sys.modules["torch"]
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    torch = sys.modules["torch"]
    torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def nests(outputs: list[Any]) -> bool:
    """Whether the backward pass of these has another one within, as that of a reentrant checkpoint,
    which writes to the parameters' gradients whoever asks."""
    torch = sys.modules["torch"]
    open_nodes = [each.grad_fn for each in outputs if each.grad_fn is not None]
    known = set(open_nodes)
    base = torch.autograd.function.BackwardCFunction
    while open_nodes and len(known) < _MOST_NODES:
        node = open_nodes.pop()
        if isinstance(node, base) and "Checkpoint" in type(node).__name__:
            return True
        for further, _ in node.next_functions:
            if further is not None and further not in known:
                known.add(further)
                open_nodes.append(further)
    return bool(open_nodes)


@contextlib.contextmanager
def gradients_aside(parameters: list[Any]) -> Iterator[None]:
    """Within, the parameters have no gradients; afterwards those that they had."""
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient


@contextlib.contextmanager
def nothing_left(module: Any) -> Iterator[None]:
    """Random numbers, buffers and attributes of `module` are afterwards what they were."""
    numpy = sys.modules.get("numpy")
    before, python = random_state(), random.getstate()
    array = None if numpy is None else numpy.random.get_state()
    torch = sys.modules["torch"]
    modules = list(module.modules())
    attributes = [dict(each.__dict__) for each in modules]
    contents = [
        (value, value.copy())
        for kept in attributes
        for key, value in kept.items()
        if type(value) in (list, dict, set, deque) and key not in ("_parameters", "_modules")
    ]
    with torch.no_grad():
        buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for each, kept in zip(modules, attributes, strict=True):
            each.__dict__.clear()
            each.__dict__.update(kept)
        for value, content in contents:
            if value != content if type(value) is not dict else value.keys() != content.keys():
                value.clear()
                value.update(content) if hasattr(value, "update") else value.extend(content)
        with torch.no_grad():
            for buffer, kept in buffers:
                buffer.copy_(kept)
        set_random_state(before)
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(array)
