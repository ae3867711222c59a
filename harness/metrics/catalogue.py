"""Every metric there is: its name, kind, labels and words. Dashboards and alerts use no others.

Names follow https://prometheus.io/docs/practices/naming/: base units, `_total` for what only
grows, `_timestamp_seconds` for Unix times, `_ratio` for shares of 1. Each has the label `run` too.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "summary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """`name` is as Prometheus shows it; a summary has `_sum` and `_count` behind it."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spread:
    """The value of a summary."""

    count: int
    sum: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric; `labels` are the values of the metric's own, in its order."""

    metric: Metric
    value: float | Spread
    labels: tuple[str, ...] = ()


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(name=f"harness_{name}_total", kind="counter", help=help, labels=labels)


def _gauge(name: str, help: str, *labels: str) -> Metric:
    return Metric(name=f"harness_{name}", kind="gauge", help=help, labels=labels)


def _summary(name: str, help: str, *labels: str) -> Metric:
    return Metric(name=f"harness_{name}", kind="summary", help=help, labels=labels)


# --- of the controller: the run as a whole -----------------------------------------------------

RUN_INFO = _gauge("run_info", "Always 1; the labels tell of the run.", "version")
RUN_START = _gauge("run_start_timestamp_seconds", "When the run began.")
RUN_STAGE = _gauge("run_stage", "1 for the stage that the run is in, 0 for all others.", "stage")
RUN_EXIT_CODE = _gauge("run_exit_code", "Exit code of the run, once it has ended.")
RUN_RANKS = _gauge("run_ranks", "Ranks of the newest attempt, by status.", "status")
RUN_NODES = _gauge("run_nodes", "Nodes that have joined, by state.", "state")
RUN_NODES_WANTED = _gauge("run_nodes_wanted", "Nodes that the run asked for.")
RUN_STEP = _gauge("run_step", "Steps completed by the rank that is furthest.")
RUN_STEPS_WANTED = _gauge("run_steps_wanted", "Steps after which the script ends, if it says so.")
RUN_LAST_STEP = _gauge(
    "run_last_step_timestamp_seconds", "When the rank that is furthest completed its last step."
)
RUN_LOSS = _gauge("run_loss", "Last loss that the lowest rank which tells one has told.")
RUN_TOKENS = _gauge("run_tokens", "Tokens consumed so far, as the script tells them.")
STEP_SECONDS = _gauge("step_duration_seconds", "Mean time of a step of this run.")
ATTEMPTS = _counter("attempts", "Launches of all workers.")
RESTARTS = _counter("restarts", "Launches after the first one.")
INCIDENTS = _counter("incidents", "Incidents.", "verdict", "family", "action")
INCIDENTS_OPEN = _gauge("incidents_open", "Incidents whose outcome is not known yet.", "verdict")
FIRST_FAILING = _gauge(
    "incident_first_failing",
    "1 for each rank that the newest incident began with.",
    "verdict",
    "node",
    "rank",
)
DETECTION = _summary("incident_detection_seconds", "Onset of an incident to its verdict.")
RECOVERY = _summary("incident_recovery_seconds", "Verdict to the first step not made before.")
LOST_STEPS = _counter("lost_steps", "Steps done again because of incidents.")
STALLED = _gauge("stall_suspected", "1 while the ranks are suspected not to go on.")
STRAGGLING = _gauge("incident_wait_ratio", "Share of their time that others wait.", "verdict")
RANK_TIME = _gauge(
    "rank_time_seconds",
    "Time of all ranks by what it went into; what was useful may turn out to be lost.",
    "part",
)
EFFECTIVE = _gauge("effective_time_ratio", "Useful share of the time of all ranks (ETTR).")
CHECKPOINT_STEP = _gauge("checkpoint_step", "Step of the newest checkpoint that all ranks saved.")
CHECKPOINT_TIME = _gauge("checkpoint_timestamp_seconds", "When the last rank had saved it.")
CHECKPOINT_SECONDS = _gauge("checkpoint_duration_seconds", "What its slowest rank took.")
STRIKES = _gauge("host_strikes", "Failures of a host that count now.", "host")
CONTROLLER_STARTS = _counter("controller_starts", "Controllers that took charge of the run.")
JOURNAL_BYTES = _gauge("journal_size_bytes", "Size of the journal.")

CONTROLLER = (
    RUN_INFO, RUN_START, RUN_STAGE, RUN_EXIT_CODE, RUN_RANKS, RUN_NODES, RUN_NODES_WANTED,
    RUN_STEP, RUN_STEPS_WANTED, RUN_LAST_STEP, RUN_LOSS, RUN_TOKENS, STEP_SECONDS, ATTEMPTS,
    RESTARTS, INCIDENTS, INCIDENTS_OPEN, FIRST_FAILING, DETECTION, RECOVERY, LOST_STEPS, STALLED,
    STRAGGLING, RANK_TIME, EFFECTIVE, CHECKPOINT_STEP, CHECKPOINT_TIME, CHECKPOINT_SECONDS,
    STRIKES, CONTROLLER_STARTS, JOURNAL_BYTES,
)  # fmt: skip

# --- of an agent: its own ranks, and its node --------------------------------------------------

NODE_INFO = _gauge("node_info", "Always 1; the labels tell of the node.", "node", "host", "version")
NODE_MEMORY = _gauge(
    "node_memory_available_bytes", "Memory that the node, or its container, has left.", "node"
)
RANK_UP = _gauge("rank_up", "1 while the process of the rank lives.", "node", "rank")
RANK_PHASE = _gauge("rank_phase", "1 for the phase that the rank is in.", "node", "rank", "phase")
RANK_STEP = _gauge("rank_step", "Steps that the rank has completed.", "node", "rank")
RANK_LAST_STEP = _gauge(
    "rank_last_step_timestamp_seconds", "When it completed the last one.", "node", "rank"
)
RANK_HEARTBEAT = _gauge(
    "rank_heartbeat_age_seconds", "Time since its last sign of life.", "node", "rank"
)
RANK_LOSS = _gauge(
    "rank_loss", "Last loss that it told; NaN when it is not finite.", "node", "rank"
)
RANK_TOKENS = _gauge("rank_tokens", "Tokens that it says it has consumed.", "node", "rank")
RANK_COLLECTIVES = _counter(
    "rank_collectives", "Collectives and sends that it has begun.", "node", "rank"
)
RANK_FDS = _gauge("rank_open_fds", "Files that it has open.", "node", "rank")
RANK_MAX_FDS = _gauge("rank_max_fds", "Files that it may have open.", "node", "rank")
RANK_MEMORY = _gauge("rank_memory_bytes", "Memory of its own, not shared.", "node", "rank")
RANK_CPU = _counter("rank_cpu_seconds", "CPU time that it has used.", "node", "rank")

AGENT = (
    NODE_INFO, NODE_MEMORY, RANK_UP, RANK_PHASE, RANK_STEP, RANK_LAST_STEP, RANK_HEARTBEAT,
    RANK_LOSS, RANK_TOKENS, RANK_COLLECTIVES, RANK_FDS, RANK_MAX_FDS, RANK_MEMORY, RANK_CPU,
)  # fmt: skip

PROCESS = (
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
)
"""What the client library tells of the agent or controller itself."""

_GPU = ("node", "gpu", "uuid")
GPU_UP = _gauge("gpu_up", "0 for a GPU that its driver has lost.", *_GPU)
GPU_BUSY = _gauge("gpu_busy_ratio", "Share of the last sample in which it computed.", *_GPU)
GPU_MEMORY_USED = _gauge("gpu_memory_used_bytes", "Memory of the GPU in use.", *_GPU)
GPU_MEMORY = _gauge("gpu_memory_bytes", "Memory of the GPU.", *_GPU)
GPU_TEMPERATURE = _gauge("gpu_temperature_celsius", "Temperature of the GPU.", *_GPU)
GPU_POWER = _gauge("gpu_power_watts", "Power that it draws.", *_GPU)
GPU_ECC = _counter("gpu_ecc_errors", "Memory errors since its driver was loaded.", *_GPU, "kind")
GPU_ROWS = _gauge("gpu_remapped_rows", "Rows of memory replaced, by kind of error.", *_GPU, "kind")
GPU_REMAP_PENDING = _gauge("gpu_remap_pending", "1 while a row waits for a reset.", *_GPU)
GPU_REMAP_FAILED = _gauge("gpu_remap_failed", "1 when there is no spare row left.", *_GPU)
GPU_THROTTLED = _gauge("gpu_throttled", "1 while its clocks are held down.", *_GPU, "reason")
GPU_NVLINK = _counter("gpu_nvlink_errors", "Errors of all of its links.", *_GPU)
GPU_PCIE = _counter("gpu_pcie_replays", "Packets that had to be sent again.", *_GPU)
GPU_XIDS = _counter("gpu_xid_errors", "Errors in the kernel log, by number.", *_GPU, "xid")

GPU = (
    GPU_UP, GPU_BUSY, GPU_MEMORY_USED, GPU_MEMORY, GPU_TEMPERATURE, GPU_POWER, GPU_ECC, GPU_ROWS,
    GPU_REMAP_PENDING, GPU_REMAP_FAILED, GPU_THROTTLED, GPU_NVLINK, GPU_PCIE, GPU_XIDS,
)  # fmt: skip

ALL = (*CONTROLLER, *AGENT, *GPU)
