"""Incidents as OpenTelemetry traces: one per incident, with a span for each part of what it cost.

For those who have OpenTelemetry's SDK and ask for it with its own variables:
`OTEL_TRACES_EXPORTER=otlp` (or console) names the exporter, `OTEL_EXPORTER_OTLP_ENDPOINT` and the
others count as they do everywhere.
"""

import logging
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from harness import events as e
from harness import goodput
from harness.incidents import Incident
from harness.state import RunState

log = logging.getLogger("harness.metrics")

_CLOSING_MILLIS = 2000
_RESTARTING = ("restart", "rollback")


class Traces:
    """Sends a trace of an incident as soon as it is over: when it was judged, if nothing is
    restarted, else with the first step that had not been made before, or at the end of the run."""

    def __init__(self, provider: Any) -> None:
        """`provider` is a TracerProvider of opentelemetry.sdk."""
        self._provider = provider
        self._tracer = provider.get_tracer("harness")
        self._open: set[int] = set()

    def resume(self, state: RunState) -> None:
        """Go on where an earlier controller has left off."""
        self._open = {each.incident for each in goodput.incident_times(state) if _goes_on(each)}

    def on_event(self, state: RunState, event: e.Event) -> None:
        """Hear what has just been folded into `state`. Never raises: exporters are others' code,
        and a run must not end of what is told about it."""
        try:
            self._hear(state, event)
        except Exception:
            log.exception("a trace is lost")

    def _hear(self, state: RunState, event: e.Event) -> None:
        match event:
            case e.IncidentOpened(incident=incident) if incident.action in _RESTARTING:
                self._open.add(incident.id)
            case e.IncidentOpened(incident=incident):
                self._send(state, incident.id)
            case e.PulsesRead() if self._open:
                over = {t.incident for t in goodput.incident_times(state) if not _goes_on(t)}
                for number in sorted(self._open & over):
                    self._send(state, number)
            case e.RunEnded():
                for number in sorted(self._open):
                    self._send(state, number)
            case _:
                pass

    def close(self) -> None:
        """Send what is left, for a moment."""
        self._provider.force_flush(_CLOSING_MILLIS)
        self._provider.shutdown()

    def _send(self, state: RunState, number: int) -> None:
        self._open.discard(number)
        times = next(t for t in goodput.incident_times(state) if t.incident == number)
        incident = next(i for i in state.incidents if i.id == number)
        verdict = incident.verdict
        parts = [("detect", times.mttd), *((part, s or 0.0) for part, s in times.split.items())]
        end_ns = verdict.onset_ns + sum(int(seconds * 1e9) for _, seconds in parts)
        from opentelemetry.context import Context
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        # An empty context: each incident is a trace of its own.
        span = self._tracer.start_span(
            f"incident {verdict.verdict}",
            context=Context(),
            start_time=verdict.onset_ns,
            attributes=attributes(state, incident),
        )
        if incident.action == "stop":
            span.set_status(Status(StatusCode.ERROR, verdict.cause))
        inside, at_ns = set_span_in_context(span, Context()), verdict.onset_ns
        for part, seconds in parts:
            until_ns = at_ns + int(seconds * 1e9)
            if until_ns > at_ns:
                child = self._tracer.start_span(part, context=inside, start_time=at_ns)
                child.end(end_time=until_ns)
            at_ns = until_ns
        span.end(end_time=end_ns)


def _goes_on(times: goodput.IncidentTimes) -> bool:
    return times.restarted and times.mttr is None


def attributes(state: RunState, incident: Incident) -> dict[str, Any]:
    """What a span says of its incident."""
    verdict = incident.verdict
    found: dict[str, Any] = {
        "harness.run": "" if state.run is None else state.run.run,
        "harness.attempt": verdict.attempt,
        "harness.incident": incident.id,
        "harness.verdict": verdict.verdict,
        "harness.family": verdict.family,
        "harness.confidence": verdict.confidence,
        "harness.action": incident.action,
        "harness.outcome": incident.outcome,
        "harness.first_failing": list(verdict.first_failing),
        "harness.victims": len(verdict.victims),
        "harness.step": verdict.step,
        "harness.cause": verdict.cause,
        "host.name": verdict.node,
    }
    if verdict.where is not None:
        found["code.file.path"] = verdict.where.file
        found["code.line.number"] = verdict.where.line
        found["code.function.name"] = verdict.where.function
    if incident.lost_steps is not None:
        found["harness.lost_steps"] = incident.lost_steps
    return found


def open_traces(environ: Mapping[str, str], run: str, version: str) -> Traces | None:
    """None where nobody asks for traces, or where they cannot be sent, which is logged."""
    name = environ.get("OTEL_TRACES_EXPORTER", "none")
    if name == "none" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("OTEL_TRACES_EXPORTER is set, but opentelemetry-sdk is not installed")
        return None
    name = {"otlp": "otlp_proto_grpc"}.get(name, name)
    found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        log.warning("OTEL_TRACES_EXPORTER: no exporter %s is installed", name)
        return None
    service = {
        "service.name": environ.get("OTEL_SERVICE_NAME", "harness"),
        "service.version": version,
        "service.instance.id": run,
    }
    try:
        provider = TracerProvider(resource=Resource.create(service))
        provider.add_span_processor(BatchSpanProcessor(found[0].load()()))
    except Exception:
        log.exception("no traces: the exporter %s failed", name)
        return None
    return Traces(provider)
