"""The cost that a client may cause in a second. Pure: the time is an argument.

Knows: counting. Must not know: the thing counted, the client that is slowed.
"""

from __future__ import annotations

WINDOW_NS = 1_000_000_000


class RateLimiter:
    """Allows an amount in each second."""

    __slots__ = ("began_ns", "most", "spent")

    def __init__(self, most: int) -> None:
        self.most = most
        self.spent = 0
        self.began_ns = 0

    def rest_ns(self, now_ns: int) -> int:
        """The time until more may be spent; 0: now."""
        rest_ns = self.began_ns + WINDOW_NS - now_ns
        if rest_ns <= 0:
            self.began_ns, self.spent = now_ns, 0
        return rest_ns if self.spent > self.most else 0


class CpuTimeShare:
    """A share of each second of the processor's time, and how near to its end it is."""

    __slots__ = ("_most_ns", "_spent_ns", "second")

    def __init__(self, most_ns: int) -> None:
        self._most_ns = most_ns
        self._spent_ns = 0
        self.second = 0
        """The number of the second that is counted in."""

    def spend(self, cost_ns: int) -> None:
        self._spent_ns += cost_ns

    def quarters(self, now_ns: int) -> int:
        """How many quarters of the share are spent in this second: 0 to 4."""
        second = now_ns // WINDOW_NS
        if second != self.second:
            self.second, self._spent_ns = second, 0
        return min(4, 4 * self._spent_ns // self._most_ns)


class Strangers:
    """Packets in this second that proved nothing: by host, and altogether.

    A host that has sent few is tried beyond that, up to twice as many altogether, so that one that
    sends many keeps none out.
    """

    def __init__(self, most_of_host: int, most: int, few: int, max_hosts: int) -> None:
        self._most_of_host = most_of_host
        self._most = most
        self._few = few
        self._max_hosts = max_hosts
        self._of_host: dict[str, int] = {}
        self._all = 0
        self._began_ns = 0

    def may_try(self, host: str, now_ns: int) -> bool:
        """Whether one more packet is worth a look."""
        if now_ns - self._began_ns >= WINDOW_NS:
            self._began_ns, self._all = now_ns, 0
            self._of_host.clear()
        sent = self._of_host.get(host, 0)
        return (
            sent < self._most_of_host
            if self._all < self._most
            else sent < self._few and self._all < 2 * self._most
        )

    def charge(self, host: str) -> None:
        self._all += 1
        if host in self._of_host or len(self._of_host) < self._max_hosts:
            self._of_host[host] = self._of_host.get(host, 0) + 1
