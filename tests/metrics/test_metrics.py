"""What is told of a run, over HTTP, is what happened in it."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.metrics import catalogue as c
from harness.metrics.catalogue import Sample, Spread
from harness.metrics.run import of_run
from harness.state import RunState
from tests.replay.world import World

pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families

from harness.metrics.endpoint import NotOpen, open_endpoint

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def failed_once() -> World:
    """Two ranks, ten steps, one killed, restarted from step 8, and on to step 12."""
    world = World(nproc=2).start()
    world.pass_time(3)
    for step in range(1, 11):
        world.step(step, seconds=1)
        if step == 8:
            world.save(8)
    world.exit(1, signal=11)
    world.judged()
    world.obey()
    return world


def read(url: str, token: str = "") -> tuple[str, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=240) as got:
        return got.read().decode(), got.headers["Content-Type"]


def values(text: str) -> Values:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def served(
    take: Callable[[], list[Sample]],
    found_in: Path,
    ask: Callable[[str], object],
    token: str = "",
) -> object:
    """What `ask` makes of an endpoint's address, asked from another thread."""

    async def serve() -> object:
        options = {"token": token, "run": "brave-otter-12", "take": take, "found_in": found_in}
        with open_endpoint("127.0.0.1:0", **options) as where:  # type: ignore[arg-type]
            return await asyncio.to_thread(ask, where)

    return asyncio.run(serve())


def test_a_run_is_told_as_it_was(tmp_path: Path) -> None:
    state = failed_once().state
    text, kind = served(  # type: ignore[misc]
        lambda: of_run(state, 4096), tmp_path / "c.json", lambda at: read(f"http://{at}/metrics")
    )
    assert kind.startswith("text/plain; version=")
    found = values(text)

    def value(name: str, **labels: str) -> float:
        return found[name, tuple(sorted({"run": "brave-otter-12", **labels}.items()))]

    incident = {"verdict": "killed_by_signal", "family": "crash", "action": "restart"}
    assert value("harness_incidents_total", **incident) == 1
    assert value("harness_restarts_total") == 1
    assert value("harness_incident_first_failing", verdict="killed_by_signal", node="0", rank="1")
    assert value("harness_incident_detection_seconds_count") == 1
    assert value("harness_checkpoint_step") == 8
    assert value("harness_journal_size_bytes") == 4096
    assert value("harness_run_nodes", state="connected") == 1
    stages = {k: v for k, v in found.items() if k[0] == "harness_run_stage"}
    assert sum(stages.values()) == 1
    parts = [v for k, v in found.items() if k[0] == "harness_rank_time_seconds"]
    assert sum(parts) == pytest.approx(2 * (state.last_ns - state.started_ns) / 1e9, rel=0.01)
    assert found["process_resident_memory_bytes", ()] > 0


def test_all_that_is_told_is_in_the_catalogue() -> None:
    for sample in of_run(failed_once().state, 0):
        assert sample.metric in c.CONTROLLER
        assert len(sample.labels) == len(sample.metric.labels)
        assert isinstance(sample.value, Spread) == (sample.metric.kind == "summary")


def test_a_run_that_has_not_begun_tells_nothing() -> None:
    assert of_run(RunState(), 0) == []


def test_prometheus_finds_the_door_while_it_is_open(tmp_path: Path) -> None:
    file = tmp_path / "metrics" / "controller.json"

    def ask(where: str) -> None:
        (entry,) = json.loads(file.read_text())
        assert entry == {"targets": [where], "labels": {"job": "harness", "run": "brave-otter-12"}}

    served(list, file, ask)
    assert not file.exists()


def test_without_the_token_nothing_is_told(tmp_path: Path) -> None:
    def ask(where: str) -> None:
        for token in ("", "wrong"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                read(f"http://{where}/metrics", token)
            assert refused.value.code == 401
            refused.value.close()
        assert "harness_attempts_total" in read(f"http://{where}/metrics", "secret")[0]

    served(lambda: [Sample(c.ATTEMPTS, 1)], tmp_path / "c.json", ask, token="secret")


def test_other_paths_are_not_found(tmp_path: Path) -> None:
    def ask(where: str) -> None:
        with pytest.raises(urllib.error.HTTPError) as refused:
            read(f"http://{where}/passwd")
        assert refused.value.code == 404
        refused.value.close()

    served(list, tmp_path / "c.json", ask)


def test_labels_with_odd_letters_come_through(tmp_path: Path) -> None:
    host = 'a "quoted"\\host\nof two lines'
    text, _ = served(  # type: ignore[misc]
        lambda: [Sample(c.STRIKES, 2, (host,))],
        tmp_path / "c.json",
        lambda at: read(f"http://{at}/metrics"),
    )
    labels = (("host", host), ("run", "brave-otter-12"))
    assert values(text)["harness_host_strikes", labels] == 2


def test_a_taken_port_is_said_or_passed_over(tmp_path: Path) -> None:
    def ask(where: str) -> None:
        async def again(next_free: bool) -> str:
            door = open_endpoint(
                where,
                token="",
                run="other",
                take=list,
                found_in=tmp_path / "d.json",
                next_free=next_free,
            )
            with door as found:
                return found

        with pytest.raises(NotOpen, match="nothing can listen at"):
            asyncio.run(again(False))
        assert asyncio.run(again(True)) != where

    served(list, tmp_path / "c.json", ask)
