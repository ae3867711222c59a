"""Ports, the host's own name, and the clock: what nodes need to meet."""

import ctypes
import socket
import time
from pathlib import Path

from harness.doctor.checks import Check
from harness.placement import C10D_PORT, STATIC_PORT
from harness.portholder import held_by

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FEW_PORTS = 2000
_SLOW_SECONDS = 1.0
_TIME_ERROR = 5
"""What adjtimex(2) returns while nothing keeps the clock right (TIME_ERROR)."""


def ports() -> Check:
    """Whether loopback works, and whether torchrun's two ports are free."""
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.settimeout(2)
        client.connect(server.getsockname())
    taken = {port: held_by(port) for port in (STATIC_PORT, C10D_PORT) if _taken(port)}
    first, last = map(int, _RANGE.read_text().split())
    facts = {"taken": sorted(taken), "ephemeral": [first, last]}
    if taken:
        who = "; ".join(f"{port} is in use{f', {by}' if by else ''}" for port, by in taken.items())
        return Check(
            name="ports",
            level="warn",
            says=who,
            help="runs over several nodes meet there by default: give another --master-port",
            facts=facts,
        )
    if last - first < _FEW_PORTS:
        return Check(
            name="ports",
            level="warn",
            says=f"only {last - first + 1} ports for connections ({first}-{last})",
            help="sysctl net.ipv4.ip_local_port_range='32768 60999'",
            facts=facts,
        )
    says = f"loopback works; {STATIC_PORT} and {C10D_PORT} are free"
    return Check(name="ports", level="ok", says=says, facts=facts)


def _taken(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("0.0.0.0", port))
        except OSError:
            return True
    return False


def host_name() -> Check:
    """Gloo looks up the name of its own host to choose an address."""
    name = socket.gethostname()
    began = time.perf_counter()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        return Check(
            name="host name",
            level="warn",
            says=f"{name} has no address: {error.strerror or error}",
            help=f"add `127.0.1.1 {name}` to /etc/hosts, or set GLOO_SOCKET_IFNAME",
            facts={"host": name},
        )
    seconds = time.perf_counter() - began
    facts = {"host": name, "address": address, "seconds": round(seconds, 3)}
    if seconds > _SLOW_SECONDS:
        return Check(
            name="host name",
            level="warn",
            says=f"looking up {name} took {seconds:.1f} s",
            help="add it to /etc/hosts",
            facts=facts,
        )
    return Check(name="host name", level="ok", says=f"{name} is {address}", facts=facts)


def clock(*, several: bool) -> Check:
    """Whether something keeps this machine's clock right, as the kernel knows it. It matters where
    a run has `several` nodes."""
    libc = ctypes.CDLL(None, use_errno=True)
    # struct timex with modes 0 only reads; it is 208 bytes on 64-bit machines.
    told = libc.adjtimex(ctypes.create_string_buffer(512))
    if told < 0:
        return Check(name="clock", level="skip", says="the kernel does not tell whether it is kept")
    if told == _TIME_ERROR and not several:
        says = "nothing keeps it right, which runs on one node do not need"
        return Check(name="clock", level="ok", says=says, facts={"synchronised": False})
    if told == _TIME_ERROR:
        return Check(
            name="clock",
            level="warn",
            says="nothing keeps this clock right",
            help="run chrony or ntpd; events of several nodes are ordered by their clocks",
            facts={"synchronised": False},
        )
    return Check(
        name="clock", level="ok", says="kept right by the system", facts={"synchronised": True}
    )
