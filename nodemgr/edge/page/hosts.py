"""Host and Origin headers: which names this page answers to. Pure.

Knows: the form of both headers. Must not know: sockets, HTTP requests.

A page of another site can have its name resolve to 127.0.0.1 (DNS rebinding) and so reach this
server from a user's browser. The Host header then holds that name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,253})(?::([0-9]{1,5}))?", re.ASCII)


def host_of(header: str) -> str | None:
    """The name or address in a Host header, in lower case; None: it has another form.

    The port is not compared: `ssh -L` and proxies change it.
    """
    found = _HOST.fullmatch(header)
    if found is None:
        return None
    return _plain(found[1])


def is_ours(header: str, names: Iterable[str], local_address: str) -> bool:
    """Whether the Host header holds one of our names, or the address of this connection's end."""
    host = host_of(header)
    if host is None:
        return False
    return host in LOCAL or host in set(map(_plain, names)) or host == _plain(local_address)


def is_same_origin(origin: str, host_header: str) -> bool:
    """Whether an Origin header names the site of the Host header."""
    scheme, separator, rest = origin.partition("://")
    return bool(separator) and scheme in ("http", "https") and rest.lower() == host_header.lower()


def neighbours(address: str) -> str | None:
    """Those that count as one with this peer: its address, or its network of IPv6.

    None: a peer on loopback, where proxies and tunnels are.
    """
    try:
        plain = ipaddress.ip_address(_plain(address))
    except ValueError:
        return None  # no peer of a network
    if plain.is_loopback:
        return None
    if plain.version == 4:
        return str(plain)
    return str(ipaddress.ip_network(f"{plain}/64", strict=False))


def _plain(name: str) -> str:
    """One spelling of each name and address."""
    bare = name.strip("[]").rstrip(".").lower()
    try:
        address = ipaddress.ip_address(bare.partition("%")[0])
    except ValueError:
        return bare
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
