"""One question to the manager, over the client's own way (libnodemgr.so, through ctypes).

Knows: what an answer or its absence means to a person. Must not know: the wire, what is asked.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Optional

FAILED, UNREACHABLE, REFUSED = 1, 69, 77
ANSWER_TIMEOUT_MS = 5_000
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
    try:
        env = settings().get("env", "?")
    except OSError as error:
        said = f"{env_dir()}/client.conf cannot be read ({error.strerror})"
        raise Refused(f"{said}: this container is in no environment (start it with --device nodemgr.local/env=NAME)", UNREACHABLE) from None
    text = _ask_client(what, argument, env)
    try:
        answer = json.loads(text)
    except ValueError:
        raise Refused("the manager's answer is no JSON: are the client here and the manager of one version?") from None
    if not isinstance(answer, dict):
        raise Refused("the manager's answer is no object: are the client here and the manager of one version?")
    if "error" in answer:
        raise Refused(str(answer["error"]), CODES.get(str(answer.get("code")), FAILED))
    return answer


def _ask_client(what: str, argument: Optional[str], env: str) -> str:
    if os.environ.get("NODEMGR_OFF") == "1":
        raise Refused("NODEMGR_OFF=1: the client is switched off here")
    try:
        import ctypes

        from client_plugin import native

        library = native.load()
    except (ImportError, OSError, AttributeError) as error:
        raise Refused(f"the client cannot be loaded into this Python ({error}): nodemgr doctor says more", UNREACHABLE) from None
    out = ctypes.create_string_buffer(MAX_ANSWER_BYTES)
    length, _ = library.ask(what, argument, out, ANSWER_TIMEOUT_MS)
    if length < 0:
        said = os.fsdecode(out.value) or "no answer"
        raise Refused(f"environment {env}: {said}; tasks that run go on (nodemgr doctor says more)", UNREACHABLE)
    return os.fsdecode(out.raw[:length])
