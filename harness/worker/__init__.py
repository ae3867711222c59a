"""The guest in the user's process: pulse, link, hooks, flight record. Standard library and torch
only; it never raises into user code, never adds a collective, and may be killed at any line."""
