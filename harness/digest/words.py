"""Any tensor as 64-bit words: the bytes of its elements, in the order in which memory holds them.

Bits are compared, never numbers: -0.0 differs from 0.0, and every NaN from every other.
"""

import torch

from harness.digest.layout import WORD

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
PLAIN = (torch.Tensor, torch.nn.Parameter)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a DTensor or of a shard of FSDP2; any other tensor as it is."""
    if type(tensor) in PLAIN:
        return tensor
    if hasattr(tensor, "to_local"):
        with torch.no_grad():
            tensor = tensor.to_local()
    if hasattr(tensor, "trigger_wait"):  # what a functional collective returns
        tensor = tensor.trigger_wait()
    if type(tensor) in PLAIN or _wraps(tensor):
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def _wraps(tensor: torch.Tensor) -> bool:
    """Whether its class answers for it: what it holds may be in other tensors, or nowhere."""
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def unreadable(tensor: torch.Tensor) -> str | None:
    """Why a local tensor has no bytes to read, in words; None where it has."""
    if _wraps(tensor) or tensor.device.type == "meta":
        return f"a {type(tensor).__name__} on {tensor.device} holds no numbers of its own"
    if tensor.layout != torch.strided:
        return f"it is {str(tensor.layout).removeprefix('torch.')}, not dense"
    if tensor.is_quantized:
        return "it is quantized"
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + last + 1) * tensor.element_size()
    if tensor.numel() and tensor.untyped_storage().nbytes() < end:
        return "its memory is freed"
    return None


def order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The strides with which the elements fill one piece of memory; None where they leave gaps,
    overlap, or stand for others (conjugated, negated), so that only a copy has them in a row.

    Dimensions of length 1 have stride 1, as what PyTorch says of them depends on their history.
    """
    if tensor.is_conj() or tensor.is_neg():
        return None
    steps = [(s if n > 1 else 1, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True)]
    if not tensor.is_contiguous():
        expected = 1
        for stride, length in sorted(step for step in steps if step[1] > 1):
            if stride != expected:
                return None
            expected *= length
    return tuple(stride for stride, _ in steps)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as integers of their own size, of the same shape and in the same memory.

    Complex numbers of 128 bits become two integers, along a new last dimension.
    """
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.element_size() > WORD:
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INTEGERS[tensor.element_size()])


def words(tensor: torch.Tensor) -> torch.Tensor:
    """All words in a row: int64, its last one filled up with zeros.

    A view where memory allows it: a whole number of words that begin at the beginning of one;
    else a copy. The tensor itself is untouched, its version counter and autograd included.
    Raises ValueError where the tensor has no bytes to read.
    """
    with torch.no_grad():
        plain = local(tensor)
        if why := unreadable(plain):
            raise ValueError(f"a tensor has no words: {why}")
        strides = order(plain)
        size = plain.numel() * plain.element_size()
        begin = int(plain.storage_offset()) * plain.element_size()
        if strides is not None and size % WORD == 0 and begin % WORD == 0:
            storage = plain.untyped_storage()
            return window(storage, begin, (size // WORD,), (1,), torch.int64)
        row = torch.zeros(-(-size // WORD), dtype=torch.int64, device=plain.device)
        place(row, plain, strides).copy_(bits(plain))
        return row


def place(row: torch.Tensor, tensor: torch.Tensor, strides: tuple[int, ...] | None) -> torch.Tensor:
    """Where in a row of words the `bits` of a tensor go so that they lie as in its own memory."""
    shape = tuple(tensor.shape)
    if strides is None:
        strides = tuple(torch.empty(shape, device="meta").stride())
    size = tensor.element_size()
    if size > WORD:
        shape, strides, size = (*shape, 2), (*(2 * step for step in strides), 1), WORD
    begin = int(row.storage_offset()) * WORD
    return window(row.untyped_storage(), begin, shape, strides, _INTEGERS[size])


def window(
    storage: torch.UntypedStorage,
    begin: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
) -> torch.Tensor:
    """Memory from byte `begin` on as a tensor, with a version counter of its own.

    One operation that asks for no type, no alignment of the other views, and leaves no trace in
    autograd. `begin` is a multiple of the size of an element; all is to lie within the storage.
    """
    offset = begin // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, strides)
