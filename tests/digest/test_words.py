"""A tensor as words: the bytes of its elements in the order of memory, whatever it is."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from harness.digest.plan import Plan
from harness.digest.words import words
from tests.digest.replicas import content

DTYPES = [
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.bool, torch.complex64, torch.complex128),
]


def memory(tensor: torch.Tensor) -> list[int]:
    """The words of a contiguous tensor, by way of Python."""
    raw = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())
    raw += bytes(-len(raw) % 8)
    return [int.from_bytes(raw[k : k + 8], "little", signed=True) for k in range(0, len(raw), 8)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_and_shape(dtype: torch.dtype) -> None:
    for shape in [(), (1,), (0,), (3, 0), (5,), (7, 9), (2, 3, 5), (64,)]:
        tensor = content(dtype, shape, seed=1)
        assert words(tensor).tolist() == memory(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex128])
def test_order_of_memory_where_it_is_dense_and_of_indices_where_it_is_not(
    dtype: torch.dtype,
) -> None:
    tensor = content(dtype, (6, 10, 4), seed=2)
    for turned in (tensor.permute(2, 0, 1), tensor.transpose(0, 2)[None]):
        assert words(turned).tolist() == memory(tensor)
    for gaps in (tensor[:, 1:3], tensor[..., ::2], tensor[0, 0, 0].expand(3, 2)):
        assert words(gaps).tolist() == memory(gaps.contiguous())
    for part in (tensor[1:], tensor[3, 5:], tensor.reshape(-1)[1:], tensor.reshape(-1)[3:4]):
        assert words(part).tolist() == memory(part)


def test_what_stands_for_its_conjugate_or_negative_counts_with_its_values() -> None:
    tensor = content(torch.complex64, (50,), seed=3)
    assert words(tensor.conj()).tolist() == memory(tensor.conj().resolve_conj())
    imaginary = tensor.conj().imag
    assert imaginary.is_neg()
    assert words(imaginary).tolist() == memory(imaginary.resolve_neg())


def test_bits_count_not_numbers() -> None:
    zero, nan = torch.tensor([0.0, 1.0]), torch.tensor([float("nan"), 1.0])
    other = nan.clone()
    other.view(torch.int32)[0] ^= 1
    assert not torch.equal(words(zero), words(torch.tensor([-0.0, 1.0])))
    assert not torch.equal(words(nan), words(other))
    assert torch.equal(words(nan), words(nan.clone()))


def test_nothing_is_seen_of_it_in_autograd() -> None:
    parameter = nn.Parameter(torch.randn(30, 30))
    square = parameter * parameter
    version = parameter._version
    with torch.inference_mode():
        plan = Plan([("p", parameter), ("small", square)])
    assert not words(parameter).requires_grad
    assert not plan.rows().requires_grad
    assert not plan.columns().requires_grad
    assert parameter._version == version
    square.sum().backward()


class Loud(torch.Tensor):
    """A subclass of a user that minds being looked at."""

    @classmethod
    def __torch_function__(cls, *args: object, **kwargs: object) -> None:
        raise AssertionError("seen")


def test_the_hooks_of_a_subclass_are_not_called() -> None:
    tensor = torch.randn(4000)
    expected = Plan([("a", tensor)]).rows().tolist()
    assert Plan([("a", tensor.as_subclass(Loud))]).rows().tolist() == expected


class Wrapper(torch.Tensor):
    """A subclass whose numbers are in another tensor."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, *args: object, **kwargs: object) -> None:
        raise AssertionError("asked")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("sparse", "a cannot be digested: it is sparse_coo, not dense"),
        ("meta", "a cannot be digested: a Tensor on meta holds no numbers of its own"),
        ("wrapper", "a cannot be digested: a Wrapper on cpu holds no numbers of its own"),
        ("freed", "a cannot be digested: its memory is freed"),
    ],
)
def test_what_has_no_bytes_is_refused_in_words(kind: str, reason: str) -> None:
    tensor = torch.ones(3, 3) if kind != "meta" else torch.empty(3, 3, device="meta")
    if kind == "sparse":
        tensor = tensor.to_sparse()
    if kind == "wrapper":
        tensor = Wrapper(tensor)
    if kind == "freed":
        tensor.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=f"^{reason}$"):
        Plan([("a", tensor)])


@pytest.fixture
def group() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        yield
        dist.destroy_process_group()


@pytest.mark.slow  # it imports most of torch.distributed
@pytest.mark.usefixtures("group")
def test_shards_count_with_what_is_here() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    whole = torch.randn(90, 70)
    tensor = distribute_tensor(whole, mesh, [Shard(0)])
    assert words(tensor).tolist() == memory(whole)
    layer = nn.Linear(120, 130)
    plain = [("weight", layer.weight.detach().clone()), ("bias", layer.bias.detach().clone())]
    fully_shard(layer, mesh=mesh)
    plan = Plan(list(layer.named_parameters()))
    assert plan.plan_hash == Plan(plain).plan_hash
    assert torch.equal(plan.rows(), Plan(plain).rows())
    layer(torch.ones(2, 120)).sum().backward()
    gradients = [p.grad for p in layer.parameters() if p.grad is not None]
    assert plan.rebind(gradients)
    assert plan.digests(plan.rows())[0] != Plan(plain).digests(Plan(plain).rows())[0]
