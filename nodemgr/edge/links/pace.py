"""The times and bounds of a link.

Knows: figures. Must not know: sockets.
"""

from __future__ import annotations

from typing import NamedTuple


class Pace(NamedTuple):
    """The times of both ends; tests take shorter ones."""

    beat_s: float = 1.0
    silent_s: float = 5.0
    """An end that says nothing for so long is away."""
    hello_s: float = 15.0
    """From the first packet of a connection to the welcome."""
    pause_s: float = 0.25
    """Before the second try; it doubles with each further one,"""
    longest_pause_s: float = 30.0
    """up to this."""
    handshake_s: float = 0.02
    """The time of one handshake at the head.

    The nodes of a head that begins again come back over so much time for each.
    """


PACE = Pace()
READ_IN_TURN, READ_BYTES_IN_TURN = 50, 2**20
"""The most frames that are read in one turn of the loop; none after so many bytes."""
MAX_PENDING = 1_000
"""The most frames on the way to one peer."""
MAX_UNREAD = 64
"""The most frames of one peer that are held and not read: 64 MiB. TCP holds the others back."""
MAX_UNPROVED = 250
"""The most connections to a head that have said nothing yet."""
MAX_FRAMES, MAX_BYTES = 2_000, 2**23
"""The most frames, and bytes, that a head takes from one node in the time of a beat."""
