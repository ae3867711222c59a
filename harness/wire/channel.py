"""What both ends of the wire agree on: protocol number, metadata keys, channel options, and how a
gRPC status reads in our own words. No conversation here."""

import hashlib

import grpc
from grpc.aio import AioRpcError, Channel, Metadata, insecure_channel, secure_channel

from harness.errors import AccessError, HarnessError, NodeFailure, PlatformError, UsageError
from harness.policy import REPORTS_PER_SECOND, Policy
from harness.wire.tls import PLAIN, Tls

PROTOCOL = 1
"""Goes up when an old agent and a new controller could no longer talk."""

TOKEN_KEY = "harness-token"
PID_KEY = "harness-pid"
"""On Report: pid of the agent process, so that a replaced agent cannot speak for its node."""

HEARTBEAT = 0.5
"""Seconds after which a link with nothing to say says so."""


def nnodes_text(least: int, most: int) -> str:
    """`2:4` of the least and most nodes of a run, `4` where they are the same or none is least."""
    return str(most) if least in (0, most) else f"{least}:{most}"


_ACKS_APART, _OF_MANY = 1.5, 2.5
"""Seconds between two acknowledgements of records; a batch of none asks for one at once. They are
as dear as the records, and all that waits for one is an agent that is about to leave."""


def ack_due(acked_at: float, told_at: float, nodes: int) -> float:
    """When the next records of an agent are acknowledged: it got the last acknowledgement at
    `acked_at`, its last order at `told_at`, and is one of so many `nodes`. Of thousands,
    acknowledgements were a third of all messages.

    Shorter than what an agent is patient with a silent controller. An order breaks the silence as
    well, once: what is not acknowledged the agent has to keep.
    """
    apart = _OF_MANY if _are_many(nodes) else _ACKS_APART
    return max(acked_at, min(told_at, acked_at + apart)) + apart


def _are_many(nodes: int) -> bool:
    return nodes > REPORTS_PER_SECOND * HEARTBEAT / 2


def heartbeat_of(policy: Policy, nodes: int) -> float:
    """The same for an agent of a run of so many nodes: thousands report seldom enough for their
    reports to be sign enough, as long as none is taken for lost."""
    if not _are_many(nodes):
        return HEARTBEAT
    return max(HEARTBEAT, min(1.2 * policy.reports_apart(nodes), policy.agent_timeout / 3))


MESSAGE_LIMIT = 64 << 20
"""Bytes of one gRPC message."""

BATCH_BYTES = 1 << 20
"""Aim for the size of a batch of records."""

# A peer that is stopped or gone without a word is noticed after 10 + 5 seconds at the latest.
_KEEPALIVE: list[tuple[str, int]] = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A kibibyte a second and agent needs no wide window; with thousands of agents, the pings that
    # find out how wide it could be are work for the controller.
    ("grpc.http2.bdp_probe", 0),
    # Nobody here packs a message, so none is unpacked to more than was allowed.
    ("grpc.per_message_compression", 0),
    ("grpc.per_message_decompression", 0),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
]

# Each connection is a fresh try (no shared back-off), and the environment's HTTP proxy is not for
# us: it would take even loopback traffic out of the house.
CLIENT_OPTIONS = [
    *_KEEPALIVE,
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]

# so_reuseport would let two runs share a port in silence.
SERVER_OPTIONS = [
    *_KEEPALIVE,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    # Who connects and says nothing is shown the door.
    ("grpc.server_handshake_timeout_ms", 10_000),
]


def open_channel(address: str, tls: Tls = PLAIN) -> Channel:
    """A channel to `address` (host:port); it connects with its first call. Raises UsageError when
    the files of TLS are not right."""
    credentials = tls.for_client()
    if credentials is None:
        return insecure_channel(address, options=CLIENT_OPTIONS)
    return secure_channel(address, credentials, options=CLIENT_OPTIONS)


def call_metadata(token: str, *more: tuple[str, str]) -> Metadata:
    """Metadata of a call; an empty token is not sent."""
    token_pair = ((TOKEN_KEY, token_proof(token)),) if token else ()
    return Metadata(*token_pair, *more)


def token_proof(token: str) -> str:
    """What crosses the wire for `token`: whatever it is made of, a digest is a legal header."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def is_broken_link(error: AioRpcError) -> bool:
    """Whether trying again may help: the peer is away, slow or just starting."""
    return error.code() not in (
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    )


def in_words(error: AioRpcError, address: str) -> HarnessError:
    """What `error` of a call to the controller at `address` means for the user."""
    details = error.details() or error.code().name.lower()
    match error.code():
        case grpc.StatusCode.UNAUTHENTICATED:
            return AccessError(
                f"the controller at {address} wants the run's token: {details}",
                help="set HARNESS_TOKEN to the token the run was started with",
            )
        case grpc.StatusCode.UNIMPLEMENTED:
            return UsageError(f"what listens at {address} is not a Harness controller")
        case grpc.StatusCode.INVALID_ARGUMENT:
            return PlatformError(f"the controller at {address} refused a message: {details}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return NodeFailure(f"the controller at {address} does not answer")
        case grpc.StatusCode.UNAVAILABLE:
            return NodeFailure(
                f"no controller answers at {address} ({_first_cause(details)})",
                help="the address stands in controller.json of the run",
            )
        case _:
            return NodeFailure(f"lost the controller at {address}: {details}")


def _first_cause(details: str) -> str:
    """`Connection refused` out of gRPC's long-winded sentences."""
    for phrase in ("Connection refused", "Connection reset", "Socket closed", "Timeout", "DNS"):
        if phrase.lower() in details.lower():
            return phrase.lower() if phrase != "DNS" else "the name does not resolve"
    return details.splitlines()[0][:120]
