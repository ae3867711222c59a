"""A run on one page of HTML that needs nothing else: no script, no font, no network."""

from harness.page.history import History
from harness.page.render import page

__all__ = ["History", "page"]
