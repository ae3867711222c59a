"""Writes the point-to-point log and the group log: hooks on torch's ProcessGroup and Work.

Attributes of the classes are replaced, so that batches and pipelines are seen as well as
`dist.send`. A send or receive counts as done when it has been waited for: Gloo completes none
before. The hooks are inert in processes that the rank has forked.
"""

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from harness.worker import grouplog, p2plog
from harness.worker.sites import METHODS, SiteWriter

_MOST_OPEN = 4096
"""Works that nobody waits for are forgotten when there are more."""


class Recorder:
    """The logs of this process and what belongs to the groups in them."""

    def __init__(self, groups: grouplog.GroupLogWriter, p2p: p2plog.P2pLogWriter) -> None:
        self._groups = groups
        self._p2p = p2p
        self._known: dict[int, tuple[int, tuple[int, ...]]] = {}
        """id of a ProcessGroup -> its number in the group log, its global ranks."""
        self._made: dict[int, weakref.ref[Any]] = {}
        self._shared: list[tuple[int, weakref.ref[Any]]] = []
        """Of the groups with other members: number in the group log, the group."""
        self._lock = threading.RLock()  # a signal handler may destroy groups too
        self._gone = 0
        """Collectives of groups that are no more."""
        self.active = True
        self._stopped: list[bool] = []
        """Not empty where it is no longer active; what a hook sees without a call."""

    # --- groups --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def creating(
        self, name: str, desc: str, ranks: Sequence[int], member: bool, place: int = -1
    ) -> Iterator[int]:
        """Around the creation of a group; gives the record's number."""
        number = 0
        if self.active:
            with contextlib.suppress(Exception):
                number = self._groups.begin(name, desc, ranks, member, place)
        try:
            yield number
        except BaseException:
            if number:
                self._groups.end(number, failed=True)
            raise
        if number:
            self._groups.end(number)

    def made(self, pg: Any, number: int, ranks: Sequence[int]) -> None:
        """`pg` is the group of record `number`."""
        if not self.active:
            return  # in a forked child, where the lock may never be given back
        with self._lock:
            self._known[id(pg)] = (number, tuple(ranks))
            self._made[id(pg)] = weakref.ref(pg)
            self._list_shared()

    def forget(self, pg: Any) -> None:
        """`pg`, or every group when None, is about to be destroyed: nothing of ours may hold it
        while its threads are joined."""
        if not self.active:
            return
        with self._lock:
            keys = list(self._made) if pg is None else [id(pg)]
            for key in keys:
                reference = self._made.pop(key, None)
                self._known.pop(key, None)
                if reference is not None and (group := reference()) is not None:
                    self._gone += _sequence_number(group)
                    del group
            self._list_shared()

    def _list_shared(self) -> None:
        self._shared = [
            (self._known[key][0], reference)
            for key, reference in self._made.items()
            if self._known[key][0] and len(self._known[key][1]) > 1
        ]

    @property
    def shares(self) -> bool:
        """Whether there are groups with other members."""
        return bool(self._shared)

    def operations(self) -> int:
        """Collectives and point-to-point operations that this rank has begun, over all groups.

        From the groups' own counters, which functional, DDP's and all other C++ callers move too.
        """
        with self._lock:
            total = self._gone + self._p2p.count
            for reference in list(self._made.values()):
                group = reference()
                if group is not None:
                    total += _sequence_number(group)
                    del group
            return total

    def positions(self, most: int) -> list[int]:
        """Number in the group log and sequence number (its low 32 bits) of the first `most` groups
        with other members, one after the other.

        Groups that carry sends and receives are left out: with Gloo those count there too, and a
        rank need not make as many as the others.
        """
        found: list[int] = []
        passing = self._p2p.groups
        for number, reference in self._shared:
            if number in passing or (group := reference()) is None:
                continue
            try:
                found += (number, group._get_sequence_number_for_group() & 0xFFFFFFFF)
            except RuntimeError:  # a backend without the counter
                continue
            if len(found) >= 2 * most:
                break
        return found

    # --- operations ----------------------------------------------------------------------------

    def watch_calls(self, module: Any, sites: SiteWriter) -> None:
        """Note the lines that call collectives of `module` (torch's binding). Once a process."""
        group_class = module.ProcessGroup
        for name in METHODS:
            if hasattr(group_class, name):
                original = getattr(group_class, name)
                setattr(group_class, name, sites.noted(original, self._known, self._stopped))

    def watch(self, module: Any) -> None:
        """Hook ProcessGroup and Work of `module` (torch's binding). Once a process."""
        group_class, work_class = module.ProcessGroup, module.Work
        slots: dict[int, int] = {}
        group_class.send = self._hooked(group_class.send, p2plog.SEND, slots)
        group_class.recv = self._hooked(group_class.recv, p2plog.RECV, slots)
        group_class.recv_anysource = self._hooked(group_class.recv_anysource, p2plog.RECV, slots)
        if hasattr(group_class, "split_group"):
            group_class.split_group = self._hooked_split(group_class.split_group)
        work_class.wait = self._hooked_wait(work_class.wait, slots)

    def _hooked(
        self, original: Callable[..., Any], direction: int, slots: dict[int, int]
    ) -> Callable[..., Any]:
        """`slots`: id of a Work -> its record. An id comes again when its Work is gone."""
        known, post, end = self._known, self._p2p.post, self._p2p.end
        dtypes = _dtypes()
        nobody: tuple[int, tuple[int, ...]] = (0, ())

        @functools.wraps(original)
        def post_operation(pg: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return original(pg, tensors, *args, **kwargs)
            try:
                peer, tag = args if len(args) == 2 else _peer_and_tag(args, kwargs)
                number, ranks = known.get(id(pg), nobody)
                if 0 <= peer < len(ranks):
                    peer = ranks[peer]
                tensor = tensors[0]
                code = dtypes.get(tensor.dtype, 0)
                at = post(direction, peer, number, tag, code, tensor.shape)
            except Exception:  # whatever was passed: the original knows what to say
                return original(pg, tensors, *args, **kwargs)
            try:
                work = original(pg, tensors, *args, **kwargs)
            except BaseException:
                end(at, p2plog.FAILED)
                raise
            key = id(work)
            if work is None:
                end(at, p2plog.UNWATCHED)
            elif key in slots:
                end(slots[key], p2plog.DROPPED)
                slots[key] = at
            else:
                if len(slots) >= _MOST_OPEN:
                    slots.clear()
                slots[key] = at
            return work

        return post_operation

    def _hooked_wait(
        self, original: Callable[..., Any], slots: dict[int, int]
    ) -> Callable[..., Any]:
        memory, end = self._p2p.memory, self._p2p.end
        state_at, waiting = p2plog.STATE_AT, p2plog.WAITING

        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            at = slots.pop(id(work), None) if slots else None
            if at is None or not self.active:
                return original(work, *args, **kwargs)
            memory[at + state_at] = waiting
            try:
                result = original(work, *args, **kwargs)
            except BaseException:
                end(at, p2plog.FAILED)
                raise
            end(at, p2plog.DONE)
            return result

        return wait

    def _hooked_split(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def split_group(pg: Any, ranks: Any, *args: Any, **kwargs: Any) -> Any:
            _, parents = self._known.get(id(pg)) or (0, ())
            members = [parents[rank] if rank < len(parents) else rank for rank in ranks]
            name, desc = kwargs.get("group_name") or "", kwargs.get("group_desc") or ""
            with self.creating(str(name), str(desc), members, True) as number:
                made = original(pg, ranks, *args, **kwargs)
            if made is not None and number:
                self.made(made, number, members)
            return made

        return split_group

    def _stop(self) -> None:
        self.active = False
        self._stopped.append(True)


def _peer_and_tag(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, int]:
    """Of a call that is not (peer, tag): from anybody, or with names."""
    if "tag" not in kwargs:
        return -1, args[0]
    named = kwargs.get("dstRank", kwargs.get("srcRank", -1))
    return (args[0] if args else named), kwargs["tag"]


def _dtypes() -> dict[Any, int]:
    import torch

    names = enumerate(p2plog.DTYPES)
    return {getattr(torch, name): code for code, name in names if hasattr(torch, name)}


def _sequence_number(pg: Any) -> int:
    try:
        return int(pg._get_sequence_number_for_group())
    except Exception:  # a backend without the counter
        return 0


def make(memory: Any, groups_at: int, p2p_at: int) -> Recorder:
    """The recorder of this process; silent in what it forks."""
    recorder = Recorder(
        grouplog.GroupLogWriter(memory, groups_at), p2plog.P2pLogWriter(memory, p2p_at)
    )
    os.register_at_fork(after_in_child=recorder._stop)
    return recorder
