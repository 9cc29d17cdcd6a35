"""Keys of CURVE in files, and the words by which a node joins once.

Knows: the forms of a key, of its file and of a word. Must not know: sockets, which key is known to
a head.

A word has two keys: the public one of the head, and the secret one of a pair that was made for this
word alone. The head keeps the public one of that pair. So a node with a word proves at the
handshake that it has one, a stranger ends there, and the head's store has no secret of a word.
"""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import NamedTuple

import zmq
from zmq.utils import z85

from nodemgr.edge.host import rundir

_KEY_BYTES = 32
_START = "join-"
"""Of each word: without it, one word of 64 would begin with "-" and be taken for an option."""


class KeyPair(NamedTuple):
    """Each key is 40 characters of Z85."""

    public: str
    secret: str


class OneTimeWord(NamedTuple):
    """An administrator takes it from the head to a new node."""

    head_key: str
    pair: KeyPair

    @property
    def text(self) -> str:
        """In characters that no shell changes."""
        both = z85.decode(self.head_key) + z85.decode(self.pair.secret)
        return _START + base64.urlsafe_b64encode(both).decode().rstrip("=")


def new_pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def pair_of(secret: str) -> KeyPair:
    """Raises ValueError: it is no key."""
    try:
        return KeyPair(zmq.curve_public(secret.encode()).decode(), secret)
    except (zmq.ZMQError, UnicodeError):
        raise ValueError("not a key of CURVE") from None


def is_key(value: object) -> bool:
    """Whether a value has the form of a key."""
    try:
        return isinstance(value, str) and len(z85.decode(value)) == _KEY_BYTES
    except (KeyError, ValueError, struct.error):
        return False


def new_word(head_key: str) -> OneTimeWord:
    return OneTimeWord(head_key, new_pair())


def read_word(text: str) -> OneTimeWord:
    """Raises ValueError: it is no word."""
    if not text.startswith(_START):
        raise ValueError("not a word of a head")
    text = text.removeprefix(_START)
    both = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    if len(both) != 2 * _KEY_BYTES:
        raise ValueError("not a word of a head")
    head_key, secret = both[:_KEY_BYTES], both[_KEY_BYTES:]
    return OneTimeWord(z85.encode(head_key).decode(), pair_of(z85.encode(secret).decode()))


def load(path: Path) -> KeyPair:
    """The pair of a file of mode 0600, which is made if it is absent.

    Raises OSError, and ValueError: the file has no key.
    """
    try:
        return pair_of(path.read_text().strip())
    except FileNotFoundError:
        pair = new_pair()
        rundir.replace(path, pair.secret + "\n", 0o600)
        return pair
