"""One question to the manager, over the client's own way (libnodemgr.so, through ctypes); a long order goes another (sheets).

Knows: what an answer or its absence means to a person. Must not know: the wire, what is asked.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any, Dict, Optional, Tuple

from client_plugin.verbs import sheets

FAILED, UNREACHABLE, REFUSED = 1, 69, 77
ANSWER_TIMEOUT_MS = 5_000
LONG_MS = 60_000
"""For an answer out of a long past."""
FOR_EVER_MS = 2**31 - 1
"""As long as the client can be told to wait: 24 days."""
INLINE_BYTES = 500
"""Of an order that travels in one packet; a longer one is written on a sheet."""
MAX_ANSWER_BYTES = 1 << 22
CODES = {"quota": REFUSED, "usage": 2}
ENV_DIR = "/run/nodemgr-env"


class Refused(Exception):
    """One line for the user, and the exit code."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code


def env_dir() -> str:
    return os.environ.get("NODEMGR_ENV_DIR") or ENV_DIR


def settings() -> Dict[str, str]:
    """client.conf. Raises OSError."""
    with open(os.path.join(env_dir(), "client.conf"), encoding="utf-8", errors="replace") as file:
        pairs = (line.rstrip("\n").partition("=") for line in file)
        return {key: value for key, equals, value in pairs if equals}


def ask(what: str, argument: Optional[str] = None) -> Dict[str, Any]:
    """The manager's answer. Raises Refused."""
    return _closed(_exchange(what, argument, ANSWER_TIMEOUT_MS))


def order(verb: str, timeout_ms: int = ANSWER_TIMEOUT_MS, **arguments: Any) -> Dict[str, Any]:
    """The answer to an order about jobs. Raises Refused."""
    return _closed(_order(verb, timeout_ms, arguments))


def order_file(verb: str, **arguments: Any) -> Tuple[Dict[str, Any], Optional[int]]:
    """The same, and a descriptor that came with it, the caller's to close. Raises Refused."""
    return _order(verb, ANSWER_TIMEOUT_MS, arguments)


def _closed(answered: Tuple[Dict[str, Any], Optional[int]]) -> Dict[str, Any]:
    answer, descriptor = answered
    if descriptor is not None:
        os.close(descriptor)
    return answer


def _order(verb: str, timeout_ms: int, arguments: Dict[str, Any]) -> Tuple[Dict[str, Any], Optional[int]]:
    text = json.dumps({"verb": verb, "args": arguments}, separators=(",", ":"))
    if len(text) > INLINE_BYTES:
        return _parsed(_on_sheet(text.encode("ascii"), timeout_ms)), None
    return _exchange("order", text, timeout_ms)


def _on_sheet(text: bytes, timeout_ms: int) -> str:
    try:
        address = settings().get("address", "unix:socket")
    except OSError:
        raise Refused(_no_env(), UNREACHABLE) from None
    scheme, _, place = address.partition(":")
    if scheme != "unix":
        raise Refused("this order is too long for one packet, and over UDP it can have no more: name fewer at a time", CODES["usage"])
    try:
        return sheets.send(os.path.join(env_dir(), place), text, timeout_ms / 1_000)
    except sheets.NotTaken as refused:
        raise Refused(str(refused)) from None
    except OSError as error:
        raise Refused(f"no manager answers behind {env_dir()} ({error}); tasks that run go on", UNREACHABLE) from None


def _no_env() -> str:
    said = f"{env_dir()}/client.conf cannot be read"
    return f"{said}: this container is in no environment (start it with --device nodemgr.local/env=NAME)"


def _exchange(what: str, argument: Optional[str], timeout_ms: int) -> Tuple[Dict[str, Any], Optional[int]]:
    try:
        env = settings().get("env", "?")
    except OSError:
        raise Refused(_no_env(), UNREACHABLE) from None
    text, descriptor = _ask_client(what, argument, env, timeout_ms)
    return _parsed(text), descriptor


def _parsed(text: str) -> Dict[str, Any]:
    """Raises Refused."""
    try:
        answer = json.loads(text)
    except ValueError:
        raise Refused("the manager's answer is no JSON: are the client here and the manager of one version?") from None
    if not isinstance(answer, dict):
        raise Refused("the manager's answer is no object: are the client here and the manager of one version?")
    if "error" in answer:
        raise Refused(str(answer["error"]), CODES.get(str(answer.get("code")), FAILED))
    return answer


def _ask_client(what: str, argument: Optional[str], env: str, timeout_ms: int) -> Tuple[str, Optional[int]]:
    if os.environ.get("NODEMGR_OFF") == "1":
        raise Refused("NODEMGR_OFF=1: the client is switched off here")
    try:
        import ctypes

        from client_plugin import native

        library = native.load()
    except (ImportError, OSError, AttributeError) as error:
        raise Refused(f"the client cannot be loaded into this Python ({error}): nodemgr doctor says more", UNREACHABLE) from None
    out = ctypes.create_string_buffer(MAX_ANSWER_BYTES)
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would hear of Ctrl-C when the call in C is over
    try:
        length, descriptor = library.ask(what, argument, out, timeout_ms)
    finally:
        signal.signal(signal.SIGINT, before)
    if length < 0:
        said = os.fsdecode(out.value) or "no answer"
        raise Refused(f"environment {env}: {said}; tasks that run go on (nodemgr doctor says more)", UNREACHABLE)
    return os.fsdecode(out.raw[:length]), None if descriptor < 0 else descriptor
