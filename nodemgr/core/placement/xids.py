"""XIDs, the driver's error numbers, that are failures of the GPU itself.

Source: NVIDIA, "Xid Errors", Xid catalog (docs.nvidia.com/deploy/xid-errors). A row stands here if
the catalog names the hardware as the origin and asks for a reset, a restart of the machine or the
support. Missing on purpose:

- faults that a program can cause: 13, 31, 32, 43, 45, 68, 69, 109 and their like. A tenant could
  close GPUs with them;
- firmware and driver faults, of which the catalog asks to look at the software: 119, 120;
- corrected errors and notes about other events: 63, 92, 93, 121, 154, 156, 160.
"""

from __future__ import annotations

HARDWARE: dict[int, str] = {
    48: "uncorrectable memory error (double bit ECC)",
    62: "internal micro-controller halt",
    64: "a memory row could not be replaced",
    74: "NVLink error",
    79: "fell off the bus",
    94: "contained uncorrectable memory error",
    95: "uncontained uncorrectable memory error",
    140: "unrecovered ECC error",
    157: "a defective unit could not be retired",
    161: "a defective channel could not be retired",
}
"""XID -> the event in words."""


def of_hardware(xid: int) -> str | None:
    """One line of evidence; None: the XID is no failure of the hardware."""
    name = HARDWARE.get(xid)
    return None if name is None else f"XID {xid}: {name}"
