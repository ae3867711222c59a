"""Matching bytes says the same as making all the values."""

import pickle
from typing import Any

import pytest

from harness.flightrecord import skim as skimming
from harness.flightrecord.scan import digest
from harness.flightrecord.skim import skim
from harness.flightrecord.untrusted import parse
from tests.analyze.job import Form, Job, Stop, dump
from tests.analyze.programs import edited, megatron, pipeline_in_batches, simple

JOBS = {
    "megatron": lambda: Job(edited(megatron(12)[0], 6, 60, Stop(), drop=0)).run(),
    "gloo": lambda: Job(edited(simple(steps=40), 2, 90, Stop(), drop=0), gloo=True).run(),
    "batches": lambda: pipeline_in_batches(1),
    "one call": lambda: Job({0: list(simple(1)[0]) * 30}).run(),
}


def interned(value: Any, known: dict[str, str]) -> Any:
    """With equal texts as one object, as PyTorch writes them."""
    if isinstance(value, str):
        return known.setdefault(value, value)
    if isinstance(value, dict):
        return {interned(key, known): interned(item, known) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(interned(item, known) for item in value)
    return value


@pytest.fixture(autouse=True)
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skimming, "_FIRST", 5)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    "form", [Form(), Form(frames=False, ring=40), Form(version="2.5", active=True)], ids=str
)
def test_both_ways_say_the_same(job: str, protocol: int, form: Form) -> None:
    made = JOBS[job]()
    skimmed = 0
    for rank in made.programs:
        value = interned(dump(made, rank, form), {})
        data = pickle.dumps(value, protocol)
        found = skim(data)
        if found is not None:
            skimmed += 1
            assert found == digest(parse(data))
    if job in ("megatron", "one call") and not form.active and not form.frames:
        assert skimmed == len(made.programs)
