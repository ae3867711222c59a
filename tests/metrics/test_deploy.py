"""What deploy/ asks Prometheus for exists, and is asked for rightly."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.incidents import FAMILY_OF
from harness.metrics.catalogue import ALL, PROCESS, Metric

yaml = pytest.importorskip("yaml")
DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
OWN_LABELS = {"run", "job", "instance"}


def series() -> dict[str, Metric | None]:
    """Every name that can be asked for."""
    found: dict[str, Metric | None] = dict.fromkeys(PROCESS)
    for metric in ALL:
        ends = ("_sum", "_count") if metric.kind == "summary" else ("",)
        found |= {metric.name + end: metric for end in ends}
    return found


def alerts() -> list[dict[str, object]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return list(group["rules"])


def expressions() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "harness.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    found += [each["expr"] for each in dashboard["annotations"]["list"]]
    found += [each["query"]["query"] for each in dashboard["templating"]["list"][1:]]
    return found + [str(rule["expr"]) for rule in alerts()]


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_every_metric_and_label_that_is_used_exists(expression: str) -> None:
    known = series()
    used = re.findall(r"\b(?:harness|process)_[a-z0-9_]+\b", re.sub(r'"[^"]*"', '""', expression))
    assert used
    assert [name for name in used if name not in known] == []
    labels = set().union(*(getattr(known[name], "labels", ()) for name in used)) | OWN_LABELS
    for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        assert {name.strip() for name in group.split(",")} <= labels
    for selector in re.findall(r"{([^}]*)}", expression):
        assert set(re.findall(r"(\w+)=~?\"", selector)) <= labels


def test_verdicts_in_alerts_are_verdicts() -> None:
    for names in re.findall(r'verdict=~?"([^"]*)"', ALERTS.read_text()):
        assert set(names.split("|")) <= FAMILY_OF.keys()


def test_labels_in_the_words_of_alerts_exist() -> None:
    known = series()
    for rule in alerts():
        used = re.findall(r"\bharness_[a-z0-9_]+\b", str(rule["expr"]))
        labels = set().union(*(getattr(known[name], "labels", ()) for name in used)) | OWN_LABELS
        assert set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"]))) <= labels


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"harness_[a-z][a-z0-9_]*[a-z0-9]", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not re.search(r"_(ms|millis|percent|mb|gib|count|sum|bucket)(_|$)", metric.name)
    assert metric.help.endswith(".")
    assert not set(metric.labels) & {"run", "le", "quantile", "job", "instance"}


def test_promtool_agrees(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    command = [promtool, "check", "rules", str(ALERTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
