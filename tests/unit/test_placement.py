"""Which node this is and where the nodes meet, with real sockets."""

import socket
from pathlib import Path

import pytest

from harness import config
from harness.errors import UsageError
from harness.placement import Placement, check_port_free, count_cpus, count_workers, place
from harness.portholder import free_port


def placed(**given: str | bool) -> Placement:
    return place(config.resolve(given, environ={}, cwd=Path("/")))


def test_one_node_needs_nothing() -> None:
    alone = placed()
    assert (alone.nnodes, alone.node_rank, alone.head) == (1, 0, True)
    assert alone.bind == "127.0.0.1:0"
    assert alone.store_port == 0
    assert alone.loopback


def test_on_one_node_the_master_port_is_the_workers() -> None:
    alone = placed(master_port="4711")
    assert (alone.port, alone.store_port) == (0, 4711)
    assert placed(standalone=True, master_port="4711").store_port == 0


def test_several_nodes_meet_at_master_addr_or_endpoint() -> None:
    by_address = placed(nnodes="2", node_rank="1", master_port="4711")
    by_endpoint = placed(nnodes="2:2", node_rank="1", rdzv_endpoint="localhost:4711")
    assert by_address.endpoint == "127.0.0.1:4711"
    assert by_endpoint.endpoint == "localhost:4711"
    assert not by_address.head
    assert placed(nnodes="2", node_rank="0", master_port="4711").head
    assert placed(nnodes="2", node_rank="0").bind == "127.0.0.1:29500"
    assert placed(nnodes="2", node_rank="0", rdzv_endpoint="localhost").bind == "127.0.0.1:29400"


def test_without_a_node_rank_the_first_here_leads_and_the_next_joins() -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    first = placed(nnodes="2", rdzv_endpoint=endpoint)
    second = placed(nnodes="2", rdzv_endpoint=endpoint)
    assert (first.head, first.node_rank) == (True, 0)
    assert (second.head, second.node_rank) == (False, -1)
    assert first.claim is not None
    first.claim.close()
    third = placed(nnodes="2", rdzv_endpoint=endpoint)
    assert third.head
    assert third.claim is not None
    third.claim.close()
    assert not placed(nnodes="2", rdzv_endpoint=endpoint, rdzv_conf="is_host=0").head


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nnodes": "0"}, "--nnodes: there must be at least one node"),
        ({"nnodes": "x"}, "--nnodes: 'x' is not a number of nodes"),
        ({"nnodes": "4:1"}, "--nnodes: 4:1 is no range of nodes"),
        ({"nnodes": "1", "spares": "1"}, "--spares: a run of one node"),
        ({"nnodes": "2", "node_rank": "2"}, "--node-rank: node 2 of 2"),
        ({"nnodes": "2", "standalone": True}, "--standalone means one node"),
        ({"nnodes": "2", "rdzv_endpoint": "a:b"}, "--rdzv-endpoint: 'a:b' is not HOST:PORT"),
        ({"nnodes": "2", "rdzv_conf": "x"}, "--rdzv-conf: 'x' is not KEY=VALUE"),
        ({"nnodes": "2", "master_port": "0"}, "several nodes need to know the port"),
        (
            {"nnodes": "2", "master_addr": "no.such.host.invalid"},
            "--master-addr: the host no.such.host.invalid is not known",
        ),
    ],
)
def test_contradictions_are_named(given: dict[str, str | bool], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        placed(**given)
    assert message in caught.value.message


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        port = free_port()
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(UsageError, match=f"--master-port: port {port} on 127.0.0.1"):
            check_port_free("127.0.0.1", port, "--master-port")
    check_port_free("127.0.0.1", port, "--master-port")
    check_port_free("127.0.0.1", 0, "--master-port")


def workers(value: str) -> int:
    found = config.resolve({"nproc_per_node": value}, environ={}, cwd=Path("/"))
    return count_workers(found, "/no/python")


def test_workers_are_counted() -> None:
    assert workers("3") == 3
    assert workers("cpu") == count_cpus()
    for wrong in ("0", "-1", "many", "1.5", ""):
        with pytest.raises(UsageError, match="--nproc-per-node"):
            workers(wrong)


@pytest.mark.skipif(
    any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists(), reason="has a GPU"
)
def test_without_a_gpu_auto_means_cpu_and_gpu_is_refused() -> None:
    assert workers("auto") == count_cpus()
    with pytest.raises(UsageError, match="there is no GPU on this machine"):
        workers("gpu")
