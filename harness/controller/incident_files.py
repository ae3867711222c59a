"""Files a person reads about an incident: `incidents/NNN/{incident.json, card.txt}`."""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from harness import events as e
from harness.incidents import Incident
from harness.state import RunState

log = logging.getLogger("harness.controller")


class Reporter(Protocol):
    """The pure core's side (harness.report)."""

    def incident_json(self, state: RunState, incident: Incident) -> Mapping[str, Any]: ...
    def card(self, state: RunState, incident: Incident) -> str: ...


class IncidentFiles:
    """Keeps the files of a run directory in step with its incidents."""

    def __init__(self, run_dir: Path, reporter: Reporter) -> None:
        self._run_dir = run_dir
        self._reporter = reporter

    def on_event(self, state: RunState, event: e.Event) -> None:
        match event:
            case e.IncidentOpened(incident=incident):
                self._write(state, incident.id)
            case (
                e.IncidentClosed(incident_id=incident_id)
                | e.IncidentSettled(incident_id=incident_id)
                | e.HostStruck(incident=incident_id)
            ):
                self._write(state, incident_id)
            case _:
                pass

    def write_all(self, state: RunState) -> None:
        """Bring the files up to a state that was read from a journal."""
        for incident in state.incidents:
            self._write(state, incident.id)

    def _write(self, state: RunState, incident_id: int) -> None:
        incident = next((i for i in state.incidents if i.id == incident_id), None)
        if incident is None:
            log.error("incident %d was closed but never opened", incident_id)
            return
        folder = self._run_dir / "incidents" / f"{incident.id:03d}"
        facts = json.dumps(self._reporter.incident_json(state, incident), indent=2)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(folder / "incident.json", facts + "\n")
            replace_file(folder / "card.txt", self._reporter.card(state, incident).rstrip() + "\n")
        except OSError as error:
            # The journal has it all; a full disk must not cost the run its controller.
            log.error("cannot write %s: %s", folder, error.strerror)


def replace_file(path: Path, text: str, mode: int | None = None) -> None:
    """Write `path` so that a reader sees the old text or the new one, never half."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    if mode is not None:
        partial.chmod(mode)
    partial.replace(path)
