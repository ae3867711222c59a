"""A link between two network namespaces whose every packet passes through this process: for tests.

Each end is a TUN device. What a link of a real network does to packets is done here, so that no
queueing discipline of the kernel is needed: they come late, are lost, or are answered with a reset.
"""

import contextlib
import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Sequence

_TUNSETIFF = 0x400454CA
_TUN, _NO_INFORMATION = 0x0001, 0x1000
_LONGEST = 1 << 16
_TCP = 6
_FIN, _SYN, _RST, _ACK = 1, 2, 4, 16


class Wire:
    """`link` in both namespaces of `names`, with the addresses `net`.1 and `net`.2.

    Raises OSError or subprocess.CalledProcessError where it cannot be made.
    """

    def __init__(self, names: Sequence[str], link: str, net: str, seed: int = 0) -> None:
        self.loss = 0.0
        """Share of the packets that do not arrive."""
        self.delay = 0.0
        """Seconds that a packet is under way."""
        self.resets = False
        """Whether packets of TCP connections are answered with a reset instead of passed on."""
        self.passed = self.lost = self.answered = 0
        self._random = random.Random(seed)
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()
        self._ends: list[int] = []
        for at, name in enumerate(names, 1):
            self._ends.append(self._end(f"hxw{os.getpid() % 10_000}{link}{at}", name, link))
            for line in (f"addr add {net}.{at}/24 dev {link}", f"link set {link} up"):
                _do(f"ip -n {name} {line}")
        self._stop, self._stopped = os.pipe()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    @staticmethod
    def _end(device: str, name: str, link: str) -> int:
        """One end, in the namespace `name`. It is gone when it is closed."""
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        asked = struct.pack("16sH22x", device.encode(), _TUN | _NO_INFORMATION)
        fcntl.ioctl(descriptor, _TUNSETIFF, asked)
        _do(f"ip link set {device} netns {name} name {link}")
        return descriptor

    def remove(self) -> None:
        os.close(self._stopped)
        self._thread.join()
        for descriptor in (*self._ends, self._stop):
            os.close(descriptor)

    def _carry(self) -> None:
        readable = select.poll()
        for descriptor in (*self._ends, self._stop):
            readable.register(descriptor, select.POLLIN | select.POLLHUP)
        while True:
            due = self._under_way[0][0] - time.monotonic() if self._under_way else None
            ready = readable.poll(None if due is None else max(0, due * 1000))
            for descriptor, _ in ready:
                if descriptor == self._stop:
                    return
                self._take(self._ends.index(descriptor))
            while self._under_way and self._under_way[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(self._under_way)
                self._give(to, packet)

    def _take(self, end: int) -> None:
        try:
            packet = os.read(self._ends[end], _LONGEST)
        except OSError:  # its namespace is being removed
            return
        if self.resets and (reset := reset_for(packet)) is not None:
            self.answered += 1
            self._give(end, reset)
        elif self._random.random() < self.loss:
            self.lost += 1
        else:
            at = time.monotonic() + self.delay
            heapq.heappush(self._under_way, (at, next(self._numbers), 1 - end, packet))

    def _give(self, to: int, packet: bytes) -> None:
        with contextlib.suppress(OSError):  # a full queue loses packets, as everywhere
            os.write(self._ends[to], packet)
            self.passed += 1


def _do(line: str) -> None:
    subprocess.run(line.split(), check=True, capture_output=True, timeout=240)


def reset_for(packet: bytes) -> bytes | None:
    """What ends the connection of a TCP packet for its sender; None for other packets.

    The sequence number is the one that the sender waits for: no other is heeded (RFC 5961).
    """
    if packet[0] >> 4 != 4 or packet[9] != _TCP:
        return None
    segment = packet[(packet[0] & 15) * 4 :]
    source, target, sent, waits_for, offset, flags = struct.unpack_from(">HHIIBB", segment)
    if flags & (_RST | _SYN) or not flags & _ACK:
        return None
    length = len(segment) - (offset >> 4) * 4 + bool(flags & _FIN)
    addresses = packet[16:20] + packet[12:16]
    numbers = (
        target,
        source,
        waits_for,
        (sent + length) & 0xFFFFFFFF,
        5 << 4,
        _RST | _ACK,
        0,
        0,
        0,
    )
    head = struct.pack(">HHIIBBHHH", *numbers)
    told = _sum(addresses + struct.pack(">BBH", 0, _TCP, len(head)) + head)
    head = head[:16] + struct.pack(">H", told) + head[18:]
    outer = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(head), 0, 0, 64, _TCP, 0) + addresses
    return outer[:10] + struct.pack(">H", _sum(outer)) + outer[12:] + head


def _sum(data: bytes) -> int:
    """The internet checksum (RFC 1071) of an even number of bytes."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
