"""The words of the help for what `Policy` holds: each of its numbers is a setting."""

from collections.abc import Mapping
from typing import Literal

Group = Literal["Common", "Several nodes", "Fault tolerance", "Hangs", "Output", "Advanced"]

POLICY_HELP: Mapping[str, tuple[Group, bool, float, str]] = {
    "max_restarts": ("Fault tolerance", True, 0, "restarts allowed within --restart-window"),
    "restart_window": ("Fault tolerance", True, 1, "seconds over which restarts are counted"),
    "same_failure_limit": (
        "Fault tolerance",
        False,
        1,
        "the same failure at the same step this often in a row stops the run",
    ),
    "evidence_budget": ("Fault tolerance", False, 0, "longest wait for evidence, seconds"),
    "settle": (
        "Advanced",
        False,
        0,
        "longest wait for other ranks to say more of a crash, seconds",
    ),
    "stop_grace": ("Fault tolerance", True, 0, "seconds from SIGTERM to SIGKILL"),
    "stop_limit": (
        "Advanced",
        False,
        1,
        "longest wait beyond --stop-grace for a node to be empty, seconds",
    ),
    "preempt_grace": (
        "Fault tolerance",
        False,
        0,
        "seconds that a preempted run has to save and stop",
    ),
    "rendezvous_timeout": ("Several nodes", True, 1, "longest wait for all nodes, seconds"),
    "last_call": (
        "Several nodes",
        False,
        0,
        "seconds that a run with enough nodes waits for more before it begins",
    ),
    "quarantine": (
        "Several nodes",
        False,
        0,
        "failures of its own within --strike-window that leave a host out; 0: never",
    ),
    "strike_window": ("Several nodes", False, 1, "seconds over which failures of hosts count"),
    "controller_timeout": (
        "Fault tolerance",
        False,
        1,
        "agents stop when they hear no controller for so many seconds",
    ),
    "agent_timeout": ("Fault tolerance", False, 1, "a node silent for so many seconds is lost"),
    "stall_floor": (
        "Hangs",
        False,
        0.1,
        "seconds without progress before a look",
    ),
    "stuck_patience": (
        "Hangs",
        True,
        0.1,
        "seconds all may wait for an idle rank",
    ),
    "work_patience": (
        "Hangs",
        False,
        0.1,
        "while it saves, evaluates, compiles",
    ),
    "start_patience": (
        "Hangs",
        False,
        0.1,
        "before the first steps, without work",
    ),
    "teardown_patience": (
        "Hangs",
        False,
        0.1,
        "seconds to end once others are done",
    ),
    "digests": (
        "Fault tolerance",
        False,
        0,
        "least steps between digests; 0: none",
    ),
    "digest_share": (
        "Advanced",
        False,
        0.0001,
        "share of a rank's time that digests may take",
    ),
    "audit_share": (
        "Advanced",
        False,
        0,
        "share for checks of own numbers; 0: none",
    ),
    "replays": (
        "Advanced",
        False,
        0,
        "least steps between replays; 0: none",
    ),
    "looks_apart": ("Advanced", False, 0.3, "seconds between two looks at a rank's progress"),
    "pulse_interval": ("Advanced", False, 0.01, "seconds between two reads of the pulse pages"),
}
"""Per field of Policy: group, whether the short help has it, least value, help."""

OFF: Mapping[str, str] = {
    "digest_share": "--digests 0 switches digests off",
    "restart_window": "--max-restarts 0 restarts nothing",
    "same_failure_limit": "a number above --max-restarts never stops a run for that",
    "strike_window": "--quarantine 0 leaves no host out",
    **dict.fromkeys(
        ("stall_floor", "stuck_patience", "work_patience", "start_patience", "teardown_patience"),
        "a large number, such as 1e9, waits for ever",
    ),
    **dict.fromkeys(
        ("controller_timeout", "agent_timeout", "rendezvous_timeout"),
        "a large number, such as 1e9, gives nobody up",
    ),
}
"""What somebody wants who gives 0 where there is none: how to have it."""

NODE_FILES = (
    ("token_file", True, "file with the run's token, needed beyond loopback (or HARNESS_TOKEN)"),
    ("tls_cert", False, "encrypt: the certificate of this node, PEM"),
    ("tls_key", False, "its private key, PEM, without a password"),
    ("tls_ca", False, "CA by which the other side's certificate has to be signed, PEM"),
)
"""Files that let nodes meet beyond loopback: name of the setting, whether it is in the short help,
and its words."""
