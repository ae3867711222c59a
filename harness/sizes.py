"""How many bytes, for people."""


def size_text(count: float) -> str:
    """`1536` as `1.5 KiB`: at most three digits."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"
