"""Digests of many tensors at once: sums of rows and columns of their words, and folds of them.

The words of each tensor are rows of a prime length. The sum of a row is a bucket; rows that damage
leaves equal, such as two words changed places, show in the sums of the columns. Sums of integers
come out the same in any order, so equal bits have equal digests on every device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.digest.layout import WIDTH, Layout, Shape
from harness.digest.mix import MASK, odd, shifted
from harness.digest.threads import one_thread
from harness.digest.words import WORD, bits, local, order, place, unreadable

_STAGED = 4 * WIDTH
"""Words up to which copying a tensor next to others costs less than an operation of its own."""
_BLOCK = 64
"""Rows whose sums of rows and of columns are taken together: 1 MiB, so they stay in the cache."""


@dataclass(slots=True, kw_only=True)
class _Rows:
    """A tensor whose whole rows are summed where they lie."""

    index: int
    count: int
    sums: torch.Tensor
    tail: torch.Tensor
    """Where its last, incomplete row is copied to: bytes, empty where there is none."""


@dataclass(slots=True, kw_only=True)
class _Copied:
    """A large tensor that lies in memory so that only a copy has its words in a row."""

    index: int
    strides: tuple[int, ...] | None
    sums: torch.Tensor


class Plan:
    """Digests of named tensors of one device, that are taken again and again.

    Planned once over all tensors: what is written is allocated here. Raises ValueError for a
    tensor without bytes to read (sparse, meta, freed) or on another device than the first.
    """

    def __init__(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        with torch.inference_mode(False), torch.no_grad():
            tensors = [local(tensor) for _, tensor in named]
            self.device = tensors[0].device if tensors else torch.device("cpu")
            shapes = [self._shape(name, t) for (name, _), t in zip(named, tensors, strict=True)]
            self.layout = Layout(shapes)
            self.plan_hash: int = self.layout.plan_hash
            self._signatures = [_signature(tensor) for tensor in tensors]
            self._allocate(tensors)
            self._bind(tensors)

    def _shape(self, name: str, tensor: torch.Tensor) -> Shape:
        if why := unreadable(tensor):
            raise ValueError(f"{name} cannot be digested: {why}")
        if tensor.device != self.device:
            raise ValueError(
                f"{name} is on {tensor.device}, the first tensor on {self.device}: "
                "make one plan for each device"
            )
        return Shape(
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),
            item=tensor.element_size(),
            lengths=tuple(tensor.shape),
            strides=order(tensor),
        )

    def _allocate(self, tensors: Sequence[torch.Tensor]) -> None:
        """The outputs, and for each tensor the way in which its words are read."""
        shapes, firsts = self.layout.shapes, self.layout.firsts
        self._vector = self._zeros(self.layout.buckets)
        self._columns = self._zeros(WIDTH)
        self._partial = self._zeros(WIDTH)
        self._keys = _keys([shape.buckets for shape in shapes]).to(self.device)
        self._order = odd(torch.arange(len(shapes), dtype=torch.int64)).to(self.device)
        self._ends = torch.tensor(firsts, dtype=torch.int64).to(self.device)
        self._rows: list[_Rows] = []
        self._copied: list[_Copied] = []
        self._small: list[int] = []
        staged: list[tuple[int, int]] = []  # (first bucket, buckets)
        for index, (shape, tensor) in enumerate(zip(shapes, tensors, strict=True)):
            first, count = firsts[index], shape.buckets
            begin = tensor.storage_offset() * shape.item
            if shape.words <= _STAGED:
                if count:
                    self._small.append(index)
                    staged.append((first, count))
            elif shape.strides is not None and begin % WORD == 0:
                whole = shape.nbytes // (WIDTH * WORD)
                sums = self._vector[first : first + whole]
                row = _Rows(index=index, count=whole, sums=sums, tail=self._ends[:0])
                self._rows.append(row)
            else:
                sums = self._vector[first : first + count]
                self._copied.append(_Copied(index=index, strides=shape.strides, sums=sums))
        with_tail = [row for row in self._rows if shapes[row.index].buckets > row.count]
        staged += [(firsts[row.index] + row.count, 1) for row in with_tail]
        self._stage(tensors, staged, with_tail)

    def _stage(
        self,
        tensors: Sequence[torch.Tensor],
        staged: Sequence[tuple[int, int]],
        with_tail: Sequence[_Rows],
    ) -> None:
        """One piece of memory for all that is copied before it is summed."""
        total = sum(count for _, count in staged)
        self._sheet = self._zeros(total, WIDTH)
        self._sheet_sums = self._zeros(total)
        where = [first + k for first, count in staged for k in range(count)]
        self._where = torch.tensor(where, dtype=torch.int64).to(self.device)
        self._targets: list[torch.Tensor] = []
        rows = iter(_starts([count for _, count in staged]))
        for index in self._small:
            row = self._sheet[next(rows) :].view(-1)
            self._targets.append(place(row, tensors[index], self.layout.shapes[index].strides))
        for piece in with_tail:
            row = self._sheet[next(rows)]
            size = self.layout.shapes[piece.index].nbytes - piece.count * WIDTH * WORD
            piece.tail = row[: size // WORD] if size % WORD == 0 else row.view(torch.uint8)[:size]
            self._targets.append(piece.tail)

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=self.device)

    def rebind(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Read these tensors from now on, in the place of those of the same order.

        False, and nothing changed, where number, shape, type, strides, alignment or device differ:
        then a new plan is needed.
        """
        with torch.no_grad():
            plain = [local(tensor) for tensor in tensors]
            if [_signature(tensor) for tensor in plain] != self._signatures:
                return False
            if any(map(unreadable, plain)):
                return False
            with torch.inference_mode(False):
                self._bind(plain)
        return True

    def release(self) -> None:
        """Let go of the tensors, so that their memory can be freed; `rebind` before `rows`."""
        self._sources: list[torch.Tensor] | None = None
        self._matrices: list[torch.Tensor] = []
        self._others: list[torch.Tensor] = []

    def _bind(self, tensors: Sequence[torch.Tensor]) -> None:
        self._sources = [bits(tensors[index]) for index in self._small]
        self._matrices = []
        self._others = [tensors[piece.index] for piece in self._copied]
        for row in self._rows:
            tensor = tensors[row.index]
            storage = tensor.untyped_storage()
            begin = tensor.storage_offset() * tensor.element_size()
            matrix = torch.empty(0, dtype=torch.int64, device=self.device)
            matrix.set_(storage, begin // WORD, (row.count, WIDTH), (WIDTH, 1))
            self._matrices.append(matrix)
            if row.tail.numel():
                size = row.tail.element_size()
                begin = (begin + row.count * WIDTH * WORD) // size
                tail = torch.empty(0, dtype=row.tail.dtype, device=self.device)
                self._sources.append(tail.set_(storage, begin, row.tail.shape, (1,)))

    def rows(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """The bucket vector: int64, one sum modulo 2^64 for each row of words, tensor by tensor.

        Without `out` it is the plan's own and overwritten by the next call.
        """
        with torch.no_grad(), one_thread():
            self._gather()
            for row, matrix in zip(self._rows, self._matrices, strict=True):
                torch.sum(matrix, 1, out=row.sums)
            for piece, tensor in zip(self._copied, self._others, strict=True):
                torch.sum(self._copy(piece, tensor), 1, out=piece.sums)
            torch.sum(self._sheet, 1, out=self._sheet_sums)
            self._vector.index_copy_(0, self._where, self._sheet_sums)
            return self._vector if out is None else out.copy_(self._vector)

    def columns(self) -> torch.Tensor:
        """Sums modulo 2^64 of the columns of all rows of all tensors: int64, WIDTH of them.

        The plan's own, overwritten by the next call.
        """
        return self.rows_and_columns()[1]

    def rows_and_columns(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What `rows` and `columns` return, at the price of reading memory once."""
        with torch.no_grad(), one_thread():
            self._gather()
            self._columns.zero_()
            for row, matrix in zip(self._rows, self._matrices, strict=True):
                self._both(matrix, row.sums)
            for piece, tensor in zip(self._copied, self._others, strict=True):
                self._both(self._copy(piece, tensor), piece.sums)
            self._both(self._sheet, self._sheet_sums)
            self._vector.index_copy_(0, self._where, self._sheet_sums)
            return self._vector, self._columns

    def _both(self, matrix: torch.Tensor, sums: torch.Tensor) -> None:
        step = _BLOCK if self.device.type == "cpu" else max(1, matrix.shape[0])
        for block, out in zip(torch.split(matrix, step), torch.split(sums, step), strict=True):
            torch.sum(block, 1, out=out)
            torch.sum(block, 0, out=self._partial)
            self._columns += self._partial

    def _gather(self) -> None:
        if self._sources is None:
            raise RuntimeError("the plan let go of its tensors: call rebind before rows")
        if self._sources:
            torch._foreach_copy_(self._targets, self._sources)

    def _copy(self, piece: _Copied, tensor: torch.Tensor) -> torch.Tensor:
        matrix = self._zeros(self.layout.shapes[piece.index].buckets, WIDTH)
        place(matrix.view(-1), tensor, piece.strides).copy_(bits(tensor))
        return matrix

    def digests(self, vector: torch.Tensor) -> list[int]:
        """For each tensor in order, 64 bits that depend on every bucket and on its place.

        They can be compared between plans, where the tensor has the same shape and type.
        """
        with torch.no_grad(), one_thread():
            return [number & MASK for number in self._digests(vector).tolist()]

    def on_device(self, vector: torch.Tensor) -> torch.Tensor:
        """What `digests` returns, as int64 where `vector` is: nothing waits for the device."""
        with torch.no_grad():
            return self._digests(vector)

    def fold(self, vector: torch.Tensor) -> int:
        """64 bits over all tensors and their order."""
        with torch.no_grad(), one_thread():
            digests = self._digests(vector)
            return int(_mixed(digests, self._order.to(digests.device)).sum()) & MASK

    def _digests(self, vector: torch.Tensor) -> torch.Tensor:
        if vector.shape != self._vector.shape or vector.dtype != torch.int64:
            raise ValueError(
                f"not a bucket vector of this plan: {vector.dtype} {tuple(vector.shape)}, "
                f"expected int64 {tuple(self._vector.shape)}"
            )
        sums = torch.zeros(len(vector) + 1, dtype=torch.int64, device=vector.device)
        torch.cumsum(_mixed(vector, self._keys.to(vector.device)), 0, out=sums[1:])
        return sums[self._ends.to(vector.device)].diff()


def _mixed(numbers: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Each number times a key of its place, its upper half having been laid over the lower one.

    The product alone would let two flips of the highest bit cancel, whatever the keys.
    """
    return (numbers ^ shifted(numbers, 32)) * keys


def _keys(counts: Sequence[int]) -> torch.Tensor:
    """A key for each bucket, from its place within its tensor."""
    longest = odd(torch.arange(max(counts, default=0), dtype=torch.int64) + (1 << 40))
    return torch.cat([longest[:count] for count in counts]) if counts else longest


def _starts(counts: Sequence[int]) -> list[int]:
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)
    return starts


def _signature(tensor: torch.Tensor) -> tuple[object, ...]:
    """What must stay the same for a plan to read a tensor in the place of another."""
    misaligned = tensor.storage_offset() * tensor.element_size() % WORD
    return tensor.dtype, tensor.shape, tensor.stride(), misaligned, tensor.device
