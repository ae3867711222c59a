"""Against a real controller on loopback that has taken up a run from its journal."""

import asyncio
import itertools
import json
from pathlib import Path

from harness import journal
from harness.cli.group import call
from harness.tui.feed import Feed, controller_feed


def test_status_by_address_and_by_name_agree(controller, capsys):
    shown = []
    for run in (controller.address, str(controller.folder)):
        code = call(["status", run, "--json"])
        shown.append((code, json.loads(capsys.readouterr().out)))
    (code, live), (_, read) = shown
    assert code in (0, 4)
    assert live["run"] == read["run"] == "swift-otter-12"
    assert live["stage"] == read["stage"] == "gathering"
    assert live["controller"] is None
    assert read["controller"]["address"] == controller.address


def test_app_watches_a_controller(controller, scenes, tui):
    feed = controller_feed(controller.address, "")
    app = tui.app_of(scenes.gathering())
    app.feed = feed
    feed.start()
    try:
        while feed.received < 4:
            assert not feed.stop_asked.wait(0.01)
    finally:
        feed.stop()
    feed._thread.join()
    count = feed.received  # the controller goes on writing
    watched = asyncio.run(tui.screens(app))
    assert "LIVE" in watched[0].splitlines()[0]
    # The same from the journal that this controller writes.
    fresh = tui.app_of(scenes.gathering())
    fresh.feed = Feed(lambda _: None, source="journal")
    for record in itertools.islice(journal.read(controller.folder / "journal.jsonl"), count):
        fresh.feed.take(record)
    fresh.feed.say("LIVE")
    assert asyncio.run(tui.screens(fresh)) == watched


def test_deed_reaches_the_controller(controller, scenes):
    from harness import runs
    from harness.cli.tui import _doer
    from harness.faults import Fault
    from harness.orders import Inject

    do = _doer(runs.find(str(controller.folder), Path()))
    accepted, why = do(Inject(fault=Fault(kind="kill", rank=0)))
    assert not accepted
    assert why
