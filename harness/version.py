"""The version of the installed distribution."""


def version() -> str:
    """For example `0.1.0`; of a checkout that is not installed, what its pyproject.toml says."""
    from importlib import metadata

    try:
        return metadata.version("train-harness")
    except metadata.PackageNotFoundError:
        import re
        from pathlib import Path

        project = Path(__file__).resolve().parent.parent / "pyproject.toml"
        found = re.search(r'^version = "([^"]+)"', project.read_text(encoding="utf-8"), re.M)
        return f"{found.group(1)}+checkout" if found else "unknown"
