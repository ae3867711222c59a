"""A run on Kubernetes: an indexed Job with a pod per node, alone or in a JobSet, and the headless
service by which its pods find the first one (https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/)."""

import json
from dataclasses import dataclass
from typing import Any

from harness.errors import ExitCode

PORT = 29500
_REPLICATED = "nodes"
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_HOPELESS = (
    ExitCode.SCRIPT_FAILED, ExitCode.USAGE, ExitCode.INTERNAL, ExitCode.GAVE_UP, ExitCode.HANG,
    ExitCode.CORRUPTION, ExitCode.OUT_OF_MEMORY,
)  # fmt: skip
"""The run itself has restarted as often as that helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """What `harness launch k8s` was asked for. `command` is what stands after `harness run`."""

    command: tuple[str, ...]
    image: str
    name: str = "harness"
    namespace: str = ""
    nodes: int = 1
    gpus: int = 0
    """Per node."""
    claim: str = ""
    """A PersistentVolumeClaim that all pods share, and where it is mounted."""
    mount: str = "/data"
    grace: int = 60
    """Seconds that a pod gets to save when it has to go."""
    restarts: int = 10
    """How often nodes that were lost or preempted are replaced."""
    metrics: int = 0
    """Port of the controller's metrics; 0: none."""
    jobset: bool = False
    """As a JobSet (https://jobset.sigs.k8s.io), which is queued and placed as one and makes its own
    Service, in place of a Job."""


def manifests(pods: Pods) -> list[dict[str, Any]]:
    """Service and Job, or a JobSet."""
    meta: dict[str, Any] = {"name": pods.name, "labels": _labels(pods)}
    if pods.namespace:
        meta["namespace"] = pods.namespace
    if pods.jobset:
        return [_jobset(pods, meta)]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {
            "clusterIP": "None",
            "selector": {"job-name": pods.name},
            # The pods must find the first one before any of them can be called ready.
            "publishNotReadyAddresses": True,
            "ports": [{"name": "controller", "port": PORT}],
        },
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": _job(pods),
    }
    return [service, job]


def _job(pods: Pods) -> dict[str, Any]:
    return {
        "completionMode": "Indexed",
        "completions": pods.nodes,
        "parallelism": pods.nodes,
        "backoffLimit": pods.restarts * pods.nodes,
        "podFailurePolicy": {"rules": _rules()},
        "template": {"metadata": {"labels": _labels(pods)}, "spec": _pod(pods)},
    }


def _jobset(pods: Pods, meta: dict[str, Any]) -> dict[str, Any]:
    """Its pods are called NAME-nodes-0-INDEX.NAME."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": meta,
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": pods.name,
                "publishNotReadyAddresses": True,
            },
            # What a restart could mend, the Job has mended by then.
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                {"name": _REPLICATED, "replicas": 1, "template": {"spec": _job(pods)}}
            ],
        },
    }


def _labels(pods: Pods) -> dict[str, str]:
    return {"app.kubernetes.io/name": "harness", "app.kubernetes.io/instance": pods.name}


def _rules() -> list[dict[str, Any]]:
    codes = sorted(int(code) for code in _HOPELESS)
    return [
        # Drained, preempted, evicted: no fault of the run, and no restart of its own.
        {
            "action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        },
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [84]}},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": codes}},
    ]


def _pod(pods: Pods) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    if pods.claim:
        volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": pods.claim}})
        mounts.append({"name": "data", "mountPath": pods.mount})
    container: dict[str, Any] = {
        "name": "harness",
        "image": pods.image,
        "command": ["harness", "run", *_node_options(pods), *pods.command],
        "env": _environment(pods),
        "ports": [{"name": "controller", "containerPort": PORT}],
        "volumeMounts": mounts,
    }
    if pods.metrics:
        container["ports"] += [
            {"name": "metrics", "containerPort": pods.metrics},
            {"name": "agent-metrics", "containerPort": pods.metrics + 1},
        ]
    if pods.claim:
        container["workingDir"] = pods.mount
    if pods.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": pods.gpus}}
    return {
        **({} if pods.jobset else {"subdomain": pods.name}),
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": pods.grace,
        "containers": [container],
        "volumes": volumes,
    }


def _node_options(pods: Pods) -> list[str]:
    found = ["--preempt-grace", str(max(1, pods.grace - 15))]
    if pods.nodes > 1:
        job = f"{pods.name}-{_REPLICATED}-0" if pods.jobset else pods.name
        first = f"{job}-0.{pods.name}"
        found += ["--nnodes", str(pods.nodes), "--master-addr", first, "--master-port", str(PORT)]
    if pods.gpus:
        found += ["--nproc-per-node", str(pods.gpus)]
    if pods.metrics:
        found += ["--metrics-port", str(pods.metrics), "--metrics-addr", "0.0.0.0"]
    return found


def _environment(pods: Pods) -> list[dict[str, Any]]:
    secret = {"name": f"{pods.name}-token", "key": "token"}
    found: list[dict[str, Any]] = []
    if pods.nodes > 1:
        found.append(
            {"name": "HARNESS_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}
        )
    if pods.nodes > 1 or pods.metrics:
        found.append({"name": "HARNESS_TOKEN", "valueFrom": {"secretKeyRef": secret}})
    return found


def as_yaml(documents: list[dict[str, Any]]) -> str:
    """Documents of mappings, lists, texts, numbers and truths as YAML; texts in JSON's quotes."""
    return "".join(f"---\n{_block(document, 0)}" for document in documents)


def _block(value: Any, indent: int) -> str:
    pad = "  " * indent
    if isinstance(value, dict):
        lines = [(f"{pad}{key}:", each) for key, each in value.items()]
    else:
        lines = [(f"{pad}-", each) for each in value]
    text = ""
    for head, each in lines:
        if isinstance(each, dict | list) and each:
            text += f"{head}\n{_block(each, indent + 1)}"
        else:
            text += f"{head} {json.dumps(each)}\n"
    return text
