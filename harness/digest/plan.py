"""Digests of many tensors at once: sums of the rows and columns of their words.

The words of each tensor are rows of a prime length. The sum of a row modulo 2^64 is a bucket; what
damage may leave equal there, such as two words that changed places within a row, shows in the sums
of the columns. Sums of integers come out the same in any order, so equal bits have equal digests on
every device and with any number of threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.digest.folding import Folding
from harness.digest.layout import WIDTH, WORD, Layout, Shape
from harness.digest.mix import MASK
from harness.digest.threads import one_thread
from harness.digest.words import PLAIN, bits, local, order, place, unreadable, window

_STAGED = 4 * WIDTH
"""Words up to which copying a tensor next to others costs less than an operation of its own."""
_BLOCK = 40
"""Rows whose sums and whose columns' sums are taken together: 0.6 MiB, to stay in the cache."""
_PARTS = 16
"""Sums of the columns of so many blocks are kept before they are added up."""


@dataclass(slots=True, kw_only=True)
class _Rows:
    """A tensor whose whole rows are summed where they lie."""

    index: int
    count: int
    sums: torch.Tensor
    tail: torch.Tensor | None
    """Where its last, incomplete row is copied to; None where there is none."""
    matrix: torch.Tensor
    """Its whole rows while the plan is bound to tensors, and `rest`, the words or bytes of the
    incomplete one."""
    rest: torch.Tensor | None = None


@dataclass(slots=True, kw_only=True)
class _Copied:
    """A large tensor that lies in memory so that only a copy has its words in a row."""

    index: int
    sums: torch.Tensor


@dataclass(slots=True, kw_only=True)
class _Known:
    """What must stay the same for a plan to read one tensor in the place of another."""

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    item: int
    misaligned: int
    span: int
    """Bytes from the first of the tensor to behind the last."""
    lazy: bool
    """Whether it stands for its memory negated or conjugated."""

    def holds(self, tensor: torch.Tensor, device: torch.device) -> bool:
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided:
            return False
        if tensor.dtype is not self.dtype or tensor.shape != self.shape:
            return False
        begin = int(tensor.storage_offset()) * self.item
        return (
            tensor.stride() == self.stride
            and begin % WORD == self.misaligned
            and tensor.untyped_storage().nbytes() >= begin + self.span
            and tensor.device == device
            and (tensor.is_neg() or tensor.is_conj()) == self.lazy
        )


class Plan:
    """Digests of named tensors of one device, to be taken again and again.

    Planned once over all tensors: what is written is allocated here. DTensors and shards of FSDP2
    count with what this rank holds of them. Raises ValueError for a tensor without bytes to read
    (sparse, meta, freed, quantized) or on another device than the first. Not for several threads
    at once.
    """

    def __init__(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        # Under inference mode what is allocated could not be written outside of it.
        with torch.inference_mode(False), torch.no_grad():
            tensors = [local(tensor) for _, tensor in named]
            self.device = tensors[0].device if tensors else torch.device("cpu")
            shapes = [self._shape(name, t) for (name, _), t in zip(named, tensors, strict=True)]
            self.layout = Layout(shapes)
            self.plan_hash: int = self.layout.plan_hash
            self._known = [_known(tensor) for tensor in tensors]
            self._foldings: dict[torch.device, Folding] = {}
            self._column_foldings: dict[torch.device, Folding] = {}
            self._allocate(tensors)
            self.release()
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
        self._part_sums = self._zeros(_PARTS, WIDTH)
        self._parts = list(self._part_sums)
        self._rows: list[_Rows] = []
        self._copied: list[_Copied] = []
        self._small: list[int] = []
        staged: list[tuple[int, int]] = []  # (first bucket, buckets)
        for index, (shape, known) in enumerate(zip(shapes, self._known, strict=True)):
            first, count = firsts[index], shape.buckets
            if shape.words <= _STAGED:
                if count:
                    self._small.append(index)
                    staged.append((first, count))
            elif shape.strides is not None and not known.misaligned:
                whole = shape.nbytes // (WIDTH * WORD)
                sums = self._vector[first : first + whole]
                self._rows.append(
                    _Rows(index=index, count=whole, sums=sums, tail=None, matrix=sums)
                )
            else:
                sums = self._vector[first : first + count]
                self._copied.append(_Copied(index=index, sums=sums))
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
        where = [first + k for first, count in staged for k in range(count)]
        self._where = torch.tensor(where, dtype=torch.int64).to(self.device)
        self._sheet = self._zeros(len(where), WIDTH)
        self._sheet_sums = self._zeros(len(where))
        self._targets: list[torch.Tensor] = []
        at = 0
        for index in self._small:
            shape = self.layout.shapes[index]
            row = self._sheet[at : at + shape.buckets].view(-1)
            self._targets.append(place(row, tensors[index], shape.strides))
            at += shape.buckets
        for piece in with_tail:
            size = self.layout.shapes[piece.index].nbytes - piece.count * WIDTH * WORD
            row = self._sheet[at]
            piece.tail = row[: size // WORD] if size % WORD == 0 else row.view(torch.uint8)[:size]
            self._targets.append(piece.tail)
            at += 1

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=self.device)

    def rebind(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Read these tensors from now on, each in the place of the one planned in its position.

        False, and nothing changed, where number, shape, type, strides, alignment to words or device
        differ, or memory is freed: then a new plan is needed.
        """
        with torch.no_grad():
            plain = [local(tensor) for tensor in tensors]
            if len(plain) != len(self._known):
                return False
            if not all(k.holds(t, self.device) for k, t in zip(self._known, plain, strict=True)):
                return False
            with torch.inference_mode(False):
                self._bind(plain)
        return True

    def release(self) -> None:
        """Let go of the tensors, so that their memory can be freed; `rebind` before `rows`."""
        self._sources: list[torch.Tensor] | None = None
        self._others: list[torch.Tensor] = []
        self._blocks: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        none = self._zeros(0)
        for row in self._rows:
            row.matrix = none
            row.rest = None

    def _bind(self, tensors: Sequence[torch.Tensor]) -> None:
        self._sources = [bits(tensors[index]) for index in self._small]
        self._others = [tensors[piece.index] for piece in self._copied]
        for row in self._rows:
            tensor = tensors[row.index]
            # The memory that is held on to cannot have become another tensor's.
            if row.matrix.data_ptr() != tensor.data_ptr():
                self._blocks = None
                self._view(row, tensor)
            if row.rest is not None:
                self._sources.append(row.rest)

    def _view(self, row: _Rows, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        begin = int(tensor.storage_offset()) * self._known[row.index].item
        row.matrix = window(storage, begin, (row.count, WIDTH), (WIDTH, 1), torch.int64)
        if row.tail is not None:
            begin += row.count * WIDTH * WORD
            row.rest = window(storage, begin, tuple(row.tail.shape), (1,), row.tail.dtype)

    def rows(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """The bucket vector: int64, one sum modulo 2^64 for each row of words, tensor by tensor.

        Without `out` it is the plan's own and overwritten by the next call.
        """
        with torch.no_grad(), one_thread():
            self._gather()
            for row in self._rows:
                torch.sum(row.matrix, 1, out=row.sums)
            for piece, tensor in zip(self._copied, self._others, strict=True):
                torch.sum(self._copy(piece, tensor), 1, out=piece.sums)
            torch.sum(self._sheet, 1, out=self._sheet_sums)
            self._vector.index_copy_(0, self._where, self._sheet_sums)
            return self._vector if out is None else out.copy_(self._vector)

    def columns(self) -> torch.Tensor:
        """Sums modulo 2^64 of the columns of all rows of all tensors: int64, WIDTH of them.

        The plan's own, overwritten by the next call, as is the bucket vector by this one.
        """
        return self.rows_and_columns()[1]

    def rows_and_columns(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What `rows` and `columns` return, for one pass over memory."""
        with torch.no_grad(), one_thread():
            self._gather()
            self._columns.zero_()
            if self._blocks is None:
                self._blocks = [b for row in self._rows for b in self._cut(row.matrix, row.sums)]
                self._blocks += self._cut(self._sheet, self._sheet_sums)
            self._both(self._blocks)
            for piece, tensor in zip(self._copied, self._others, strict=True):
                self._both(self._cut(self._copy(piece, tensor), piece.sums))
            self._vector.index_copy_(0, self._where, self._sheet_sums)
            return self._vector, self._columns

    def _cut(
        self, matrix: torch.Tensor, sums: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        step = _BLOCK if self.device.type == "cpu" else max(1, matrix.shape[0])
        return list(zip(torch.split(matrix, step), torch.split(sums, step), strict=True))

    def _both(self, blocks: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for first in range(0, len(blocks), _PARTS):
            group = blocks[first : first + _PARTS]
            for (block, sums), part in zip(group, self._parts, strict=False):
                torch.sum(block, 1, out=sums)
                torch.sum(block, 0, out=part)
            self._columns += self._part_sums[: len(group)].sum(0)

    def _gather(self) -> None:
        if self._sources is None:
            raise RuntimeError("the plan let go of its tensors: call rebind first")
        if self._sources:
            torch._foreach_copy_(self._targets, self._sources)

    def _copy(self, piece: _Copied, tensor: torch.Tensor) -> torch.Tensor:
        shape = self.layout.shapes[piece.index]
        matrix = self._zeros(shape.buckets, WIDTH)
        place(matrix.view(-1), tensor, shape.strides).copy_(bits(tensor))
        return matrix

    def digests(self, vector: torch.Tensor) -> list[int]:
        """For each tensor in order, 64 bits that depend on every bucket and on its place.

        The name and the other tensors do not count: a tensor has the same digest in every plan
        that holds it with the same type, shape and strides. `vector` may be on another device.
        """
        with torch.no_grad(), one_thread():
            return [number & MASK for number in self.folding(vector).digests(vector).tolist()]

    def fold(self, vector: torch.Tensor) -> int:
        """64 bits over all tensors and their order."""
        with torch.no_grad(), one_thread():
            folding = self.folding(vector)
            return int(folding.fold(folding.digests(vector))) & MASK

    def fold_columns(self, columns: torch.Tensor) -> int:
        """64 bits over the sums of the columns, likewise."""
        with torch.no_grad(), one_thread():
            return int(self.column_folding(columns).digests(columns)) & MASK

    def column_folding(self, columns: torch.Tensor) -> Folding:
        """What folds the sums of the columns where they are."""
        found = self._column_foldings.get(columns.device)
        if found is None:
            found = Folding([WIDTH], columns.device)
            self._column_foldings[columns.device] = found
        return found

    def folding(self, vector: torch.Tensor) -> Folding:
        """What folds such a vector where it is; ValueError where it is none of this plan."""
        if vector.shape != self._vector.shape or vector.dtype != torch.int64:
            raise ValueError(
                f"not a bucket vector of this plan: {vector.dtype} {tuple(vector.shape)}, "
                f"expected int64 {tuple(self._vector.shape)}"
            )
        found = self._foldings.get(vector.device)
        if found is None:
            counts = [shape.buckets for shape in self.layout.shapes]
            found = self._foldings[vector.device] = Folding(counts, vector.device)
        return found


def _known(tensor: torch.Tensor) -> _Known:
    item, steps = tensor.element_size(), zip(tensor.shape, tensor.stride(), strict=True)
    return _Known(
        dtype=tensor.dtype,
        shape=tensor.shape,
        stride=tensor.stride(),
        item=item,
        misaligned=int(tensor.storage_offset()) * item % WORD,
        span=(sum((n - 1) * step for n, step in steps) + 1) * item if tensor.numel() else 0,
        lazy=tensor.is_neg() or tensor.is_conj(),
    )
