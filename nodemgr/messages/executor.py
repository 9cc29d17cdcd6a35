"""The reasons why an attempt of a job did not begin, or was lost: parts of the line about the job.

The supervisor's own reasons are in client_plugin/messages/attempts.py.
"""

from __future__ import annotations

from client_plugin.messages.form import (
    Part,
)

REPORT_NOT_WRITTEN = Part("the disk does not take this report now")
