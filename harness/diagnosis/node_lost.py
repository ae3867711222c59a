"""node_lost: a node's agent is gone, and its workers with it."""

from harness.diagnosis.scene import Scene
from harness.diagnosis.signature import Signature
from harness.incidents import Finding
from harness.topology import ranks_text


def find(scene: Scene) -> list[Finding]:
    """All lost nodes together: their ranks failed without a word of their own."""
    lost = scene.attempt.lost_nodes
    if not lost:
        return []
    ranks = tuple(
        rank
        for node in sorted(lost)
        if node in scene.attempt.nodes
        for rank in scene.attempt.nodes[node].ranks
    )
    nodes = ranks_text(sorted(lost))
    why = next(iter(lost.values()))
    silent = [ending for ending in scene.of_kind("lost")]
    onset = min((ending.at_ns for ending in silent), default=scene.attempt.trouble_ns)
    return [
        Finding(
            verdict="node_lost",
            ranks=ranks,
            cause=f"node {nodes} is gone: {why}",
            reason=f"node {nodes} stopped answering, and workers do not outlive their agent",
            confidence="proven",
            onset_ns=onset,
            signature=Signature(verdict="node_lost", what="node", detail=why).text(),
        )
    ]
