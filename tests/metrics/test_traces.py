"""Incidents become traces with a span for each part of what they cost."""

import pytest

from harness import events as e
from harness.state import RunState, fold
from tests.metrics.test_metrics import failed_once

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from harness.metrics.traces import Traces, open_traces


def spans_of(records: list[e.Record]) -> list:  # type: ignore[type-arg]
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces, state = Traces(provider), RunState()
    for record in records:
        fold(state, record)
        traces.on_event(state, record.event)
    traces.close()
    return list(exporter.get_finished_spans())


def test_an_incident_that_is_over_is_one_trace() -> None:
    world = failed_once()
    for step in range(9, 13):
        world.step(step, seconds=1)
    spans = spans_of(world.records)
    (whole,) = [span for span in spans if span.parent is None]
    assert whole.name == "incident killed_by_signal"
    assert whole.attributes["harness.first_failing"] == (1,)
    assert whole.attributes["harness.action"] == "restart"
    assert whole.start_time == world.state.incidents[0].verdict.onset_ns
    parts = [span for span in spans if span is not whole]
    assert {span.context.trace_id for span in parts} == {whole.context.trace_id}
    assert {"recompute", "step"} <= {span.name for span in parts}
    assert sum(s.end_time - s.start_time for s in parts) == whole.end_time - whole.start_time


def test_one_that_never_ends_is_told_with_the_run() -> None:
    world = failed_once()
    assert spans_of(world.records) == []
    world.say(e.RunEnded(outcome="failed", exit_code=75, reason="no"), plan=False)
    assert [s.name for s in spans_of(world.records) if s.parent is None]


def test_nobody_asks_and_nothing_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    assert open_traces({}, "run", "1") is None
    assert open_traces({"OTEL_TRACES_EXPORTER": "carrier-pigeon"}, "run", "1") is None
    assert "no exporter carrier-pigeon is installed" in caplog.text
    traces = open_traces({"OTEL_TRACES_EXPORTER": "console"}, "run", "1")
    assert traces is not None
    traces.close()
