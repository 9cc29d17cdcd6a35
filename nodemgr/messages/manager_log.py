"""The lines of the manager and of its page in the log (stderr, the journal)."""

from __future__ import annotations

from client_plugin.messages.form import (
    Notice,
)

# -- clients and containers --

DRIVER_LIMIT_NOT_SET = Notice(
    "the driver's own memory limit could not be set, the ledger alone holds: {error}"
)
