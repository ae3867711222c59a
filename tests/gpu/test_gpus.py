"""GPU health: what NVML and the kernel log say, who is on the GPU, and what is concluded."""

import asyncio
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness import events as e
from harness.agent.gpus import Gpus
from harness.agent.kernellog import KernelLog, xid_of
from harness.agent.nvml import Nvml
from harness.devices import XIDS, GpuFailed, GpusRead, condemns
from harness.metrics import catalogue as c
from harness.metrics.gpu import of_gpus
from tests.gpu.tape import Tape
from tests.replay.world import World

FELL_OFF = (
    "6,1234,98765,-;NVRM: Xid (PCI:0000:4b:00): 79, pid=4001, name=python3, "
    "GPU has fallen off the bus."
)
DOUBLE_BIT = (
    "4,77,1,-;NVRM: Xid (PCI:0000:3B:00): 48, pid='<unknown>', name=<unknown>, "
    "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer"
)
ILLEGAL = "4,78,1,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=4000, name=python3, MMU Fault"


@dataclass
class Rank:
    rank: int
    local_rank: int
    pid: int
    attempt: int = 0


@dataclass
class Node:
    """GPUs from the tape, and four ranks of which the first two are on them."""

    tape: Tape = field(default_factory=Tape)
    said: list[e.Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        ranks: Any = [Rank(4 + place, place, 4000 + place) for place in range(2)]
        self.gpus = Gpus(1, lambda: ranks, lambda attempt, event: self.said.append(event))
        self.nvml = Nvml(self.tape)

    def read(self, at: int) -> "Node":
        self.tape.at = at
        self.gpus.read(self.nvml.read())
        return self

    @property
    def failed(self) -> list[GpuFailed]:
        return [event for event in self.said if isinstance(event, GpuFailed)]


def test_a_healthy_node_is_told_once() -> None:
    node = Node().read(0).read(0)
    assert [type(event) for event in node.said] == [GpusRead]
    first = node.gpus.gpus[0]
    assert (first.bus_id, first.busy, first.power_watts) == ("0000:3b:00", 0.97, 412.345)
    assert (first.ecc_uncorrected, first.nvlink_errors, first.throttled) == (0, 3, ())


def test_memory_errors_are_laid_at_the_rank_that_computes_there() -> None:
    node = Node().read(0).read(1)
    (failed,) = node.failed
    assert failed.text == "GPU 0: uncorrectable ECC errors rose from 0 to 2"
    assert (failed.ranks, failed.proven, failed.node_rank) == ((4,), True, 1)
    assert node.gpus.gpus[0].throttled == ("hardware_heat",)
    assert node.gpus.gpus[0].remap_pending


def test_a_lost_gpu_names_the_rank_that_was_there() -> None:
    node = Node().read(0).read(2)
    lost = node.failed[-1]
    assert "GPU 1 is lost" in lost.text
    assert (lost.ranks, lost.proven) == ((5,), True)
    assert Node().read(2).read(2).failed == []  # it was so before we came


def test_what_a_card_does_not_tell_is_left_out() -> None:
    old = Node().read(3).gpus.gpus[1]
    assert (old.ecc_corrected, old.nvlink_errors, old.power_watts) == (None, None, None)
    told = {sample.metric for sample in of_gpus("1", [old], {})}
    assert c.GPU_TEMPERATURE in told
    assert told.isdisjoint({c.GPU_ECC, c.GPU_POWER, c.GPU_NVLINK, c.GPU_ROWS})


def test_the_kernel_log_names_gpu_and_rank() -> None:
    node = Node().read(0)
    node.gpus.heard([FELL_OFF, "6,1,1,-;usb 1-1: new device", DOUBLE_BIT, ILLEGAL])
    off, memory = node.failed
    assert (off.xid, off.gpu, off.ranks, off.proven) == (79, 1, (5,), True)
    assert (memory.xid, memory.gpu, memory.ranks) == (48, 0, (4,))
    assert node.gpus.xids == {(1, 79): 1, (0, 48): 1, (0, 31): 1}
    counted = [s for s in of_gpus("1", node.gpus.gpus, node.gpus.xids) if s.metric == c.GPU_XIDS]
    assert {(s.labels[1], s.labels[3]) for s in counted} == {("1", "79"), ("0", "48"), ("0", "31")}


def test_a_storm_of_one_error_is_told_once() -> None:
    node = Node().read(0)
    node.gpus.heard([FELL_OFF] * 1000)
    assert len(node.failed) == 1
    assert node.gpus.xids == {(1, 79): 1000}


def test_a_driver_that_never_answers_holds_up_nobody() -> None:
    asked, never = threading.Event(), threading.Event()

    class Stuck(Nvml):
        def read(self) -> Any:
            asked.set()
            never.wait()

    async def watch() -> None:
        gpus = Gpus(0, tuple, lambda attempt, event: None)
        task = asyncio.create_task(gpus.watch())
        while not asked.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.agent.gpus.load", Tape)
        patch.setattr("harness.agent.gpus.Nvml", Stuck)
        asyncio.run(watch())
    never.set()


def test_without_a_pid_the_order_of_local_ranks_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node().read(0)
    node.gpus.gpus = [gpu for gpu in node.gpus.gpus if not setattr_pids(gpu)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    node.gpus.heard([DOUBLE_BIT])
    assert (node.failed[0].ranks, node.failed[0].proven) == ((5,), False)


def setattr_pids(gpu: Any) -> bool:
    """In a container NVML names no pids."""
    object.__setattr__(gpu, "pids", ())
    return False


def test_new_lines_of_a_log_are_read_as_they_come(tmp_path: Path) -> None:
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    log = KernelLog(pipe)
    with pipe.open("w") as kernel:
        assert log.lines() == []
        kernel.write(FELL_OFF + "\n" + DOUBLE_BIT + "\n")
        kernel.flush()
        assert log.lines() == [FELL_OFF, DOUBLE_BIT]
        assert log.lines() == []
    log.close()
    assert KernelLog(tmp_path / "none").lines() == []


@pytest.mark.parametrize("line", ["", "NVRM: Xid", "NVRM: Xid (PCI:zz): 79, x", "Xid 79 \x00\xff"])
def test_other_lines_are_no_reports(line: str) -> None:
    assert xid_of(line) is None


def failing(xid: int, *, proven: bool = True, ranks: tuple[int, ...] = (3,)) -> World:
    world = World().start()
    world.step(1)
    report = GpuFailed(
        node_rank=0,
        xid=xid,
        text=f"NVRM: Xid (PCI:0000:4b:00): {xid}, GPU",
        seen_ns=world.now_ns,
        gpu=3,
        ranks=ranks,
        proven=proven,
    )
    world.say(report, 0)
    world.pass_time(1)
    return world


def verdict_of(world: World) -> Any:
    return world.judged().verdict


def test_a_rank_killed_after_its_gpu_fell_off_is_a_device_fault() -> None:
    world = failing(79)
    world.exit(3, signal=6)
    world.cries(0, 1, 2)
    found = verdict_of(world)
    assert (found.verdict, found.first_failing, found.confidence) == (
        "device_fault",
        (3,),
        "proven",
    )
    assert found.cause == "GPU 3 of node 0: Xid 79, the GPU has fallen off the bus"
    assert "Xid (PCI:0000:4b:00): 79" in found.evidence[0].shows
    assert found.onset_ns == world.state.attempts[0].gpu_errors[0][0].seen_ns


def test_a_guess_at_the_rank_is_only_likely() -> None:
    world = failing(95, proven=False)
    world.raises(3, "torch.AcceleratorError", "CUDA error: unspecified launch failure")
    world.cries(0, 1, 2)
    assert (verdict_of(world).verdict, verdict_of(world).confidence) == ("device_fault", "likely")


def test_an_error_of_the_program_stays_one() -> None:
    world = failing(79)
    world.raises(3, "ValueError", "no such file of data")
    world.cries(0, 1, 2)
    assert verdict_of(world).verdict == "exception"
    world = failing(63)  # a row remapped: the program goes on
    world.exit(3, signal=11)
    assert verdict_of(world).verdict == "killed_by_signal"


def test_other_ranks_are_not_to_blame() -> None:
    world = failing(79)
    world.exit(1, signal=11)
    found = verdict_of(world)
    assert (found.verdict, found.first_failing) == ("killed_by_signal", (1,))


def test_every_warning_has_words_and_programs_faults_condemn_nobody() -> None:
    assert all(condemns(number) or number in XIDS for number in XIDS)
    assert not any(condemns(number) for number in (13, 31, 43, 45, 63, 92))
