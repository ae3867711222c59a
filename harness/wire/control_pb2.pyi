from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Hello(_message.Message):
    __slots__ = ("protocol", "run", "node_rank", "local_world_size", "host", "pid", "last_order", "nnodes")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    LAST_ORDER_FIELD_NUMBER: _ClassVar[int]
    NNODES_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    run: str
    node_rank: int
    local_world_size: int
    host: str
    pid: int
    last_order: int
    nnodes: str
    def __init__(self, protocol: _Optional[int] = ..., run: _Optional[str] = ..., node_rank: _Optional[int] = ..., local_world_size: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., last_order: _Optional[int] = ..., nnodes: _Optional[str] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("id", "body", "welcome")
    ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    id: int
    body: bytes
    welcome: Welcome
    def __init__(self, id: _Optional[int] = ..., body: _Optional[bytes] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("run", "node_rank", "refused")
    RUN_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    run: str
    node_rank: int
    refused: str
    def __init__(self, run: _Optional[str] = ..., node_rank: _Optional[int] = ..., refused: _Optional[str] = ...) -> None: ...

class EventBatch(_message.Message):
    __slots__ = ("source", "first_index", "records")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    source: str
    first_index: int
    records: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, source: _Optional[str] = ..., first_index: _Optional[int] = ..., records: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("source", "seq")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    source: str
    seq: int
    def __init__(self, source: _Optional[str] = ..., seq: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("from_index",)
    FROM_INDEX_FIELD_NUMBER: _ClassVar[int]
    from_index: int
    def __init__(self, from_index: _Optional[int] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("body", "by")
    BODY_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    by: str
    def __init__(self, body: _Optional[bytes] = ..., by: _Optional[str] = ...) -> None: ...

class CommandReply(_message.Message):
    __slots__ = ("accepted", "why")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    why: str
    def __init__(self, accepted: bool = ..., why: _Optional[str] = ...) -> None: ...
