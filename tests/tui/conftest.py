"""The scenes of tests/tui/scenes.py as a fixture: tests are not a package to import from."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "harness_view_scenes", Path(__file__).with_name("scenes.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCENES = _load()


@pytest.fixture(scope="session")
def scenes() -> ModuleType:
    return SCENES
