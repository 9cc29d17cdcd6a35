"""The life of the page process: it gives up its rights, serves the page, and ends at SIGTERM.

Knows: the order of these. Must not know: HTTP, the manager. The starter forks it
(edge/page/starter.py), or the service nodemgr-web runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nodemgr.edge.host import privileges, stderr_log
from nodemgr.edge.host.rundir import VIEWS_SOCKET
from nodemgr.edge.page.address import listen
from nodemgr.edge.page.channel import Channel, RequestRefused
from nodemgr.edge.page.server import Page, PageFile, PageSettings, read_files, serve
from nodemgr.messages import manager_log as log

MAX_MEMORY_BYTES = 2**31
RETRY_S = 0.5


class Told(NamedTuple):
    """Address and settings of the page, as the manager has them."""

    host: str
    port: int
    settings: PageSettings

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Told:
        return cls(
            told["host"], told["port"], PageSettings(tuple(told["names"]), str(told["base"]))
        )


def give_up_rights(uid: int | None) -> None:
    """Of the process for good. `uid`: the user and group to become; None: the present one."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    privileges.keep_only(())
    privileges.close_memory()
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),  # it starts no process and no thread
        (resource.RLIMIT_AS, MAX_MEMORY_BYTES),
    ):
        _, hard = resource.getrlimit(kind)
        with contextlib.suppress(OSError, ValueError):
            most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(kind, (most, most))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4_096)), hard))


async def run(
    views: Path,
    settings: PageSettings,
    files: Mapping[str, PageFile],
    listeners: list[socket.socket],
) -> None:
    """Serves until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    channel = Channel(views)
    page = Page(channel, settings, files)
    server = serve(page, listeners)
    connected = asyncio.get_running_loop().create_task(channel.run())
    try:
        await ended.wait()
    finally:
        server.stop()
        connected.cancel()


async def _told(views: Path) -> Told:
    """The manager's answer; waits until there is a manager."""
    channel = Channel(views)
    connected = asyncio.get_running_loop().create_task(channel.run())
    try:
        while True:
            with contextlib.suppress(RequestRefused):
                return Told.of(await channel.ask("hello"))
            await asyncio.sleep(RETRY_S)
    finally:
        connected.cancel()


def serve_for(run_dir: str) -> int:
    """The service: learns its address from the manager, and serves. Returns an exit code."""
    views = Path(run_dir) / VIEWS_SOCKET
    files = read_files()
    told = asyncio.run(_told(views))
    try:
        listeners = listen(told.host, told.port)
    except OSError as error:
        stderr_log.say(log.PAGE_CANNOT_LISTEN(host=told.host, port=told.port, error=error.strerror))
        return 1
    give_up_rights(None)
    asyncio.run(run(views, told.settings, files, listeners))
    return 0
