"""The launch gate: its memory files, the hooks of launches, processes that take turns."""
