"""Texts as torch 2.13 writes them, told apart."""

import pytest

from harness.diagnosis.texts import is_cry, is_size_abort, is_timeout, last_exception
from tests.replay.world import CRY, SIZE_ABORT, TIMED_OUT


@pytest.mark.parametrize(
    "text",
    [
        CRY,
        "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed"
        " by peer [127.0.0.1]:8067. This is typically caused by a remote worker crashing.",
        "[gloo/transport/tcp/pair.cc:1] Write error [127.0.0.1]:2: Broken pipe",
        "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a"
        " network error",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes. Connection was likely"
        " closed. Did the remote server shutdown or crash?",
        "RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] connect: Connection refused",
    ],
)
def test_cries(text: str) -> None:
    assert is_cry(text)
    assert not is_timeout(text)


@pytest.mark.parametrize(
    "text",
    [
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "requests.exceptions.ConnectionError: connection refused",
        "torch.distributed.DistBackendError: Duplicate GPU detected : ncclInvalidUsage",
        "torch.distributed.DistNetworkError: code: -98, name: EADDRINUSE",
        "ValueError: shapes do not match",
    ],
)
def test_own_failures_are_no_cries(text: str) -> None:
    assert not is_cry(text)
    assert not is_timeout(text)


@pytest.mark.parametrize(
    "text",
    [
        TIMED_OUT,
        "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2",
        "torch.distributed.DistBackendError: Watchdog caught collective operation timeout:"
        " WorkNCCL(SeqNum=3, OpType=ALLREDUCE) ran for 10023 milliseconds before timing out",
    ],
)
def test_timeouts_are_no_cries(text: str) -> None:
    assert is_timeout(text)
    assert not is_cry(text)


def test_a_size_abort() -> None:
    assert is_size_abort("\n".join(SIZE_ABORT))
    assert not is_size_abort("SIGABRT")


def test_the_last_exception_of_a_log_with_its_users_line() -> None:
    logged = last_exception(
        [
            "rank 1 step 4",
            "[rank1]: Traceback (most recent call last):",
            '[rank1]:   File "/home/u/train.py", line 30, in main',
            "[rank1]:     load(path)",
            '[rank1]:   File "/x/site-packages/torch/serialization.py", line 9, in load',
            "[rank1]:     raise E",
            "[rank1]: torch.UnpicklingError: bad file",
        ]
    )
    assert logged is not None
    assert logged.where is not None
    assert (logged.exc_type, logged.message) == ("torch.UnpicklingError", "bad file")
    assert (logged.where.file, logged.where.line) == ("/home/u/train.py", 30)
    assert last_exception(["all is well", "ValueError: only mentioned"]) is None


def test_a_traceback_without_its_head() -> None:
    logged = last_exception(
        ["    call()", '  File "/home/u/train.py", line 3, in f', "    x", "KeyError: 'x'"]
    )
    assert logged is not None
    assert (logged.exc_type, logged.message) == ("KeyError", "'x'")
