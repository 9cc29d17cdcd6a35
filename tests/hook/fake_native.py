"""Replaces client_plugin/native.py in a test's payload: the same interface, scripted answers.

FAKE_NATIVE names a JSON file:
    settings   client.conf
    preloaded  whether the shim is there
    requests   for each request the states it goes through, [state, line]; "hold" as state: waits
               for ever in the one before
    lease      what the lease says
    log        file that gets one line per call that asks for something
"""

from __future__ import annotations

import enum
import json
import os
import threading
import time


class ClientState(enum.IntEnum):
    NONE = 0
    WAITING = 1
    HELD = 2
    DENIED = 3
    LOST = 4
    NO_MANAGER = 5
    CPU = 6
    UNMANAGED = 7


class Native:
    def __init__(self, script):
        self.script = script
        self.requests = list(script.get("requests", [[["HELD", ""]]]))
        self.steps = []
        self.now = (ClientState.NONE, "")
        self.published = {}
        self.waiter = None
        self.lock = threading.RLock()
        self.pollers = set()

    def under_way(self):
        return self.now[0] is ClientState.WAITING or (
            self.now[0] is ClientState.NO_MANAGER and self.setting("no_manager") != "error"
        )

    def log(self, text):
        with open(self.script["log"], "a") as file:
            file.write(f"{os.getpid()} {text}\n")

    def progress(self, done, total):
        self.log(f"progress {done} {total}")

    def preloaded(self):
        return self.script.get("preloaded", True)

    def managed(self):
        return self.script.get("managed", True)

    def setting(self, key):
        return self.script.get("settings", {}).get(key)

    def begin(self, gpus=-1):
        with self.lock:
            if not self.under_way() and self.now[0] is not ClientState.HELD:
                self.log("begin" if gpus == -1 else f"begin {gpus}")
                self.steps = list(self.requests.pop(0) if self.requests else [])
                self.step()
            return self.now[0]

    def step(self):
        state, line = self.steps.pop(0)
        self.now = (ClientState[state], line)
        if self.now[0] in (ClientState.HELD, ClientState.CPU):
            self.published.update(self.script.get("grant", {}))

    def poll(self, timeout_ms):
        with self.lock:
            self.pollers.add(threading.get_ident())
            holds = self.steps and self.steps[0][0] == "hold"
            if self.under_way() and self.steps and not holds:
                self.step()
        if holds:
            time.sleep(timeout_ms / 1000)
        return self.now

    def state(self):
        return self.now

    def cancel(self):
        with self.lock:
            if self.under_way():
                self.log("cancel")
                self.now = (ClientState.NONE, "")
                self.steps = []

    def lease(self):
        return self.script.get("lease", {}) if self.now[0] is ClientState.HELD else {}

    def is_stderr(self, adopt=False):
        return True

    def set_waiter(self, waiter):
        self.waiter = waiter

    def set_raiser(self, raiser):
        self.raiser = raiser

    def publish(self, name, value):
        self.log(f"publish {name}={value}")
        self.published[name] = value
        os.putenv(name, value)

    def environment(self, name):
        return self.published.get(name, os.environ.get(name))


def load():
    with open(os.environ["FAKE_NATIVE"]) as file:
        script = json.load(file)
    if "fault" in script:
        raise OSError(script["fault"])
    return Native(script)
