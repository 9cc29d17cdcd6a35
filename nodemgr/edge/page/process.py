"""The life of the page process: it gives up its rights, serves the page, and ends at SIGTERM.

    python -m nodemgr.edge.page.process JSON

Knows: the order of these. Must not know: HTTP, the manager. The manager starts it once, before it
gives up the right to become another user (edge/web/page_host.py), or `nodemgr web page` runs it, as
the unit nodemgr-web does. It opens no file after it gave up its rights, so that it works where the
installation is closed to other users.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nodemgr.edge.host import privileges, stderr_log
from nodemgr.edge.host.rundir import VIEWS_SOCKET
from nodemgr.edge.page.address import END, GO, ByHand, listen, url
from nodemgr.edge.page.channel import Channel, RequestRefused
from nodemgr.edge.page.server import Page, PageFile, PageSettings, read_files, serve

RIGHTS = (6, 7)
"""CAP_SETGID, CAP_SETUID: of the process that becomes another user."""
LINGER_S = 600.0
"""The page stays this long after a manager that was lost, and reports that."""
MAX_MEMORY_BYTES = 2**31
RETRY_S = 0.5


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
    control: socket.socket | None = None,
) -> None:
    """Serves until SIGTERM, or until the manager at the other end of `control` ends."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)

    def hear(control: socket.socket) -> None:
        loop.remove_reader(control)
        loop.call_later(0 if control.recv(16) == END else LINGER_S, ended.set)

    if control is not None:
        loop.add_reader(control, hear, control)
    channel = Channel(views)
    page = Page(channel, settings, files)
    server = serve(page, listeners)
    connected = loop.create_task(channel.run())
    try:
        await ended.wait()
    finally:
        server.stop()
        connected.cancel()


async def _told(views: Path) -> Mapping[str, Any]:
    """Address and settings of the page, as the manager has them; waits until there is a manager."""
    channel = Channel(views)
    connected = asyncio.get_running_loop().create_task(channel.run())
    try:
        while True:
            with contextlib.suppress(RequestRefused):
                told: Mapping[str, Any] = await channel.ask("hello")
                return told
            await asyncio.sleep(RETRY_S)
    finally:
        connected.cancel()


def serve_for(run_dir: str, note: Callable[[ByHand], None]) -> int:
    """Learns its address from the manager, and serves. Returns an exit code.

    Root's process becomes the user that alone may open the manager's socket. `note`: called once it
    has its address, with the rights that it was started with.
    """
    views = Path(run_dir) / VIEWS_SOCKET
    files = read_files()
    told = asyncio.run(_told(views))
    try:
        listeners = listen(told["host"], told["port"])
    except OSError as error:
        stderr_log.say(
            f"the web page cannot listen on {told['host']}:{told['port']} ({error.strerror})",
            "name another address (--web), or end the program that listens there",
        )
        return 1
    uid = views.stat().st_uid if os.geteuid() == 0 else None
    note(ByHand(told, url(listeners, told["base"]), uid))
    give_up_rights(uid)
    settings = PageSettings(tuple(told["names"]), str(told["base"]))
    asyncio.run(run(views, settings, files, listeners))
    return 0


def main(argument: str) -> int:
    """The process that the manager starts."""
    told = json.loads(argument)
    privileges.keep_only(RIGHTS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.chdir("/")
    listeners = [socket.socket(fileno=number) for number in told["listeners"]]
    settings, files = PageSettings(tuple(told["names"]), told["base"]), read_files()
    try:
        give_up_rights(told["uid"])
        control = socket.socket(fileno=told["control"])
        if control.recv(16) == GO:  # else the manager is lost, and no later one would know of this
            asyncio.run(run(Path(told["views"]), settings, files, listeners, control))
    except Exception as error:
        stderr_log.fault("that ends the web page's process", error)
        return 1
    return 0
