"""Which node this is, where the nodes meet, and how many workers it takes."""

import errno
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from harness.config import Config
from harness.errors import PlacementError
from harness.portholder import held_by

LOOPBACK = "127.0.0.1"
STATIC_PORT = 29500
"""torchrun's default with --master-addr."""
C10D_PORT = 29400
"""torchrun's default when --rdzv-endpoint names no port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """This node's place in the run.

    `host` and `port` are where the nodes meet: the head's controller listens there; port 0 means
    any. `store_port` is the port asked for the workers' MASTER_PORT, 0 for any. `claim`, when
    set, keeps the headship of an elected head while it is open.
    """

    nnodes: int
    node_rank: int
    head: bool
    host: str
    port: int
    store_port: int
    min_nodes: int = 0
    """Least nodes to go on with, where a range was given; else 0."""
    spares: int = 0
    claim: socket.socket | None = None

    @property
    def bind(self) -> str:
        """What the head listens on."""
        if is_local(self.host):
            return f"{_bracketed(socket.gethostbyname(self.host))}:{self.port}"
        return f"0.0.0.0:{self.port}"  # its name leads here through a translated address

    @property
    def endpoint(self) -> str:
        return f"{_bracketed(self.host)}:{self.port}"

    @property
    def loopback(self) -> bool:
        return is_local(self.host) and socket.gethostbyname(self.host).startswith("127.")


def place(config: Config) -> Placement:
    """This node's placement. Raises UsageError when the settings contradict each other."""
    min_nodes, nnodes = _nnodes(config)
    spares = config.integer("spares") or 0
    node_rank = config.integer("node_rank")
    if node_rank is not None and node_rank >= nnodes + spares:
        raise PlacementError(
            f"{config.origin('node_rank')}: node {node_rank} of {nnodes + spares};"
            " nodes count from 0"
        )
    if spares and nnodes == 1:
        raise PlacementError(
            "--spares: a run of one node has none to lose but the one that holds the controller",
            help="ask for more with --nnodes, or leave out --spares",
        )
    if config.flag("standalone"):
        if nnodes > 1:
            raise PlacementError("--standalone means one node", help="leave out --nnodes or it")
        return _single(LOOPBACK, 0, store_port=0)
    if config.text("rdzv_endpoint"):
        host, port = _endpoint(config)
        store_port = 0
    else:
        host = config.text("master_addr")
        given = config.integer("master_port")
        port = (STATIC_PORT if given is None else given) if nnodes > 1 else 0
        store_port = (given or 0) if nnodes == 1 else 0
    if nnodes == 1:
        return _single(host, port, store_port=store_port)
    _resolve(host, config)
    if port == 0:
        raise PlacementError("several nodes need to know the port", help="give --master-port")
    claim = None
    head = node_rank == 0
    if node_rank is None:
        wish = rdzv_conf(config).get("is_host")
        claim = _claim(port) if wish is None and is_local(host) else None
        head = claim is not None if wish is None else wish.lower() in ("1", "true", "yes", "t", "y")
        node_rank = 0 if head else -1
    return Placement(
        nnodes=nnodes,
        node_rank=node_rank,
        head=head,
        host=host,
        port=port,
        store_port=store_port,
        min_nodes=min_nodes,
        spares=spares,
        claim=claim,
    )


def _single(host: str, port: int, *, store_port: int) -> Placement:
    local = host if is_local(host) else LOOPBACK
    return Placement(nnodes=1, node_rank=0, head=True, host=local, port=port, store_port=store_port)


def _nnodes(config: Config) -> tuple[int, int]:
    """Least and most nodes; the least is 0 where a single number was given."""
    origin, text = config.origin("nnodes"), config.text("nnodes")
    least, colon, most = text.partition(":")
    try:
        lower, upper = int(least), int(most or least)
    except ValueError:
        raise PlacementError(
            f"{_name('nnodes', origin)}: {text!r} is not a number of nodes"
        ) from None
    if lower > upper:
        raise PlacementError(
            f"{_name('nnodes', origin)}: {text} is no range of nodes",
            help=f"give the least first: --nnodes {upper}:{lower}",
        )
    if lower < 1:
        raise PlacementError(
            f"{_name('nnodes', origin)}: there must be at least one node, not {lower}"
        )
    return (lower if colon else 0), upper


def _name(setting: str, origin: str) -> str:
    return f"--{setting.replace('_', '-')}" if origin == "default" else origin


def _endpoint(config: Config) -> tuple[str, int]:
    text = config.text("rdzv_endpoint")
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(C10D_PORT)
    try:
        number = int(port)
    except ValueError:
        number = -1
    if not host or not 0 <= number < 65536:
        raise PlacementError(
            f"{config.origin('rdzv_endpoint')}: {text!r} is not HOST:PORT",
            help="for example --rdzv-endpoint node0:29400",
        )
    return host.strip("[]"), number


def rdzv_conf(config: Config) -> dict[str, str]:
    """--rdzv-conf as a mapping. Raises UsageError when it is not K=V,K=V."""
    pairs: dict[str, str] = {}
    for part in filter(None, config.text("rdzv_conf").split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise PlacementError(f"{config.origin('rdzv_conf')}: {part!r} is not KEY=VALUE")
        pairs[key.strip()] = value.strip()
    return pairs


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _resolve(host: str, config: Config) -> None:
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        name = "rdzv_endpoint" if config.text("rdzv_endpoint") else "master_addr"
        raise PlacementError(
            f"{_name(name, config.origin(name))}: the host {host} is not known ({error.strerror})"
        ) from None


def is_local(host: str) -> bool:
    """Whether `host` is an address of this machine: whether it can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
        except OSError:
            continue
    return False


def _claim(port: int) -> socket.socket | None:
    """Claim the headship of the run that meets at `port` of this machine; None if another has it.

    An abstract socket's name is free again the moment its owner dies, whatever it dies of.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(f"\0harness-head-{port}")
    except OSError:
        claim.close()
        return None
    return claim


def check_port_free(host: str, port: int, option: str) -> None:
    """Raise UsageError naming `port` when nothing could listen on it. Port 0 is always free."""
    if port == 0:
        return
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        holder = held_by(port) if error.errno == errno.EADDRINUSE else ""
        raise PlacementError(
            f"{option}: port {port} on {host} cannot be had ({error.strerror or error})"
            + (f", {holder}" if holder else ""),
            help="choose another one, or leave it out" if option == "--master-port" else None,
        ) from None


def count_workers(config: Config, python: str) -> int:
    """Workers of this node: --nproc-per-node with auto, cpu and gpu counted."""
    text, origin = config.text("nproc_per_node"), config.origin("nproc_per_node")
    name = _name("nproc_per_node", origin)
    if text in ("auto", "gpu"):
        gpus = count_gpus(python)
        if gpus == 0 and text == "gpu":
            raise PlacementError(
                f"{name}: there is no GPU on this machine that PyTorch could use",
                help="give a number, or cpu",
            )
        return gpus or count_cpus()
    if text == "cpu":
        return count_cpus()
    try:
        count = int(text)
    except ValueError:
        raise PlacementError(
            f"{name}: {text!r} is not a number of workers", help="give a number, auto, cpu or gpu"
        ) from None
    if count < 1:
        raise PlacementError(f"{name}: there must be at least one worker, not {count}")
    return count


def count_cpus() -> int:
    return len(os.sched_getaffinity(0))


def count_gpus(python: str) -> int:
    """What torch.cuda.device_count() would say, torch not imported here.

    Without a device file there is none. Otherwise torch itself is asked, in a process of its own:
    it alone knows CUDA_VISIBLE_DEVICES, MIG and ROCm as the workers will see them.
    """
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/kfd").exists():
        return 0
    import subprocess

    question = "import torch; print(torch.cuda.device_count())"
    try:
        answer = subprocess.run(
            [python, "-c", question], capture_output=True, text=True, check=False, timeout=120
        )
    except subprocess.TimeoutExpired:
        why = "PyTorch did not answer within 120 s; is the driver stuck?"
    else:
        if answer.returncode == 0:
            return int(answer.stdout)
        why = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
    raise PlacementError(
        f"--nproc-per-node: GPUs cannot be counted: {why}", help="give a number instead"
    )
