"""The logs that a rank keeps in shared memory, as the agent reads them. They outlive the rank."""

import mmap

from harness.collectives import GroupCreation, PointToPoint
from harness.worker import layout
from harness.worker.grouplog import GroupLogReader
from harness.worker.p2plog import P2pLogReader

MOST_OPERATIONS = 64
MOST_GROUPS = 256


class RecordLogs:
    """Both logs of one worker, for as long as this object lives.

    Reads take milliseconds and never wait for the rank.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, layout.BYTES, prot=mmap.PROT_READ)
        self._groups = GroupLogReader(self._memory, layout.GROUPS_AT)
        self._p2p = P2pLogReader(self._memory, layout.P2P_AT)

    @property
    def exchanged(self) -> bool:
        """Whether it has sent or received anything yet; costs next to nothing."""
        return self._p2p.used

    def operations(self, most: int = MOST_OPERATIONS) -> tuple[PointToPoint, ...]:
        """The newest `most` point-to-point operations and all open ones, oldest first."""
        return self._p2p.read(self._groups.read(), min(most, MOST_OPERATIONS))

    def newest_operation(self) -> tuple[int, bytes]:
        """Changes whenever an operation has begun or ended."""
        return self._p2p.newest()

    def groups(self) -> tuple[GroupCreation, ...]:
        """The creations of groups, oldest first: those the rank belongs to, is still in, or was in
        last."""
        made = list(self._groups.read().values())
        kept = [group for group in made if group.member or not group.ended_ns]
        last = [group for group in made[-MOST_OPERATIONS:] if group not in kept]
        return tuple(sorted(kept[-MOST_GROUPS:] + last, key=lambda group: group.begun_ns))
