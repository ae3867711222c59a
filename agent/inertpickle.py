"""Reading what a pickled checkpoint says of itself without running anything of it: whatever is not
a plain value becomes an object that does nothing."""

import collections
import pickle
from collections.abc import Iterator
from typing import Any, BinaryIO

from harness.checkpointnames import STEP_KEYS

MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
"""How files of torch.save began before they were zip archives, and still may."""

_SIZES = {
    "DoubleStorage": 8, "LongStorage": 8, "ComplexFloatStorage": 8, "ComplexDoubleStorage": 16,
    "FloatStorage": 4, "IntStorage": 4, "QInt32Storage": 4, "ShortStorage": 2, "HalfStorage": 2,
    "BFloat16Storage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1, "QInt8Storage": 1,
    "QUInt8Storage": 1, "UntypedStorage": 1, "QUInt4x2Storage": 1, "QUInt2x4Storage": 1,
}  # fmt: skip


class Inert:
    """Stands for anything that is not plain, takes whatever a pickle does to it."""

    def __init__(self, *_args: Any, **_more: Any) -> None: ...
    def __setstate__(self, _state: Any) -> None: ...
    def __setitem__(self, _key: Any, _value: Any) -> None: ...
    def append(self, _value: Any) -> None: ...
    def extend(self, _values: Any) -> None: ...
    def add(self, _value: Any) -> None: ...


class _Storage(Inert):
    """Stands for a class of tensors' memory; the bytes of an element are its size."""

    size = 0


class _Unpickler(pickle.Unpickler):
    """A pickle reaches anything beyond plain values only through these two doors."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.storages: dict[str, int] = {}
        """Bytes of each storage that is referred to; -1 where its type is not known."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch" and name.endswith("Storage"):
            return type(name, (_Storage,), {"size": _SIZES.get(name, 0)})
        return Inert

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage":
            _, kind, key, _, count = pid[:5]
            size = getattr(kind, "size", 0)
            known = size and isinstance(count, int)
            self.storages[str(key)] = size * count if known else -1
        return Inert()


def step_in(file: BinaryIO) -> tuple[str, int] | None:
    """The step that the pickled value in `file` says it is of, and under which key."""
    return _step(_Unpickler(file).load())


def legacy(file: BinaryIO) -> tuple[tuple[str, int] | None, int | None]:
    """Of a file of torch.save that is no archive, read from its beginning: the step, and where it
    must end; None where that cannot be told. Raises EOFError and others when it ends too soon."""
    for _ in range(3):  # magic number, version, system
        _Unpickler(file).load()
    unpickler = _Unpickler(file)
    value = unpickler.load()
    keys = _Unpickler(file).load()
    end = file.tell()
    for key in keys:
        size = unpickler.storages.get(str(key), -1)
        if size < 0:
            return _step(value), None
        end += 8 + size
    return _step(value), end


def _step(value: Any) -> tuple[str, int] | None:
    if not isinstance(value, dict):
        return None
    return next(_steps(value), None)


def _steps(value: dict[Any, Any]) -> Iterator[tuple[str, int]]:
    for key in STEP_KEYS:
        step = value.get(key)
        if isinstance(step, int) and not isinstance(step, bool) and step >= 0:
            yield key, step
