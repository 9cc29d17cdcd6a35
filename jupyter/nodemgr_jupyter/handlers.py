"""The two handlers: the GPUs of a kernel, and their release. Jupyter authenticates both.

Knows: tornado, Jupyter's kernels. Must not know: the fields of the status. One question at a time
goes to an environment's manager, and its answer serves all pages that ask meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web

from nodemgr_jupyter import client, kernels, view

KEPT_S = 0.9
ID = re.compile("[tr][0-9]{1,30}")


class Views:
    """The latest view of each kernel, kept for a moment."""

    def __init__(self) -> None:
        self._latest: dict[kernels.Place, tuple[float, asyncio.Task[Any]]] = {}

    async def of(self, place: kernels.Place) -> Any:
        now = time.monotonic()
        self._latest = {
            key: (at, task)
            for key, (at, task) in self._latest.items()
            if now - at < KEPT_S or not task.done()
        }
        if place not in self._latest:
            asking = asyncio.create_task(asyncio.to_thread(_ask, place))
            self._latest[place] = now, asking
        return await asyncio.shield(self._latest[place][1])

    def forget(self) -> None:
        """The next view is a new one."""
        self._latest = {}


def _ask(place: kernels.Place) -> Any:
    try:
        return view.asked(place)
    except client.faults().Fault as fault:
        return view.failed(fault)


def _release(directory: str, task: str) -> Any:
    """The reason of a refusal in one line, or None."""
    try:
        client.choice().UserWay(directory).question("release", task)
    except client.faults().Fault as fault:
        return str(fault.message)
    return None


class Handler(APIHandler):
    auth_resource = "kernels"

    def initialize(self, views: Views) -> None:
        self.views = views

    async def place(self, kernel_id: str | None) -> kernels.Place | None:
        """Raises HTTPError 404 where there is no such kernel, ImportError without a client."""
        kernel = None
        if kernel_id:
            if kernel_id not in self.kernel_manager:
                raise web.HTTPError(404, "no such kernel")
            kernel = self.kernel_manager.get_kernel(kernel_id)
        return kernels.place_of(kernel)


class GpuHandler(Handler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        try:
            place = await self.place(self.get_query_argument("kernel", None))
            shown = view.outside() if place is None else await self.views.of(place)
        except ImportError as error:
            shown = view.without_client(error)
        self.finish(json.dumps(shown))


class ReleaseHandler(Handler):
    def named(self) -> tuple[str, str | None]:
        """The task or request, and the kernel, of the body. Raises HTTPError 400."""
        try:
            body = self.get_json_body()
        except UnicodeDecodeError:
            body = None
        if not isinstance(body, dict):
            raise web.HTTPError(400, "the body is no JSON object")
        task, kernel = body.get("id"), body.get("kernel")
        if not isinstance(task, str) or not ID.fullmatch(task):
            raise web.HTTPError(400, "id is no task and no request: t17, r17")
        if not isinstance(kernel, (str, type(None))):
            raise web.HTTPError(400, "kernel is no kernel's id")
        return task, kernel

    @web.authenticated
    @authorized
    async def post(self) -> None:
        task, kernel = self.named()
        place = await self.place(kernel)
        if place is None:
            from client_plugin.messages import jupyter as messages  # the client is found by now

            raise web.HTTPError(409, messages.KERNEL_OUTSIDE())
        error = await asyncio.to_thread(_release, place.directory, task)
        self.views.forget()
        self.finish(json.dumps({"schema_version": view.SCHEMA_VERSION, "error": error}))


def install(app: Any) -> None:
    base, views = app.settings["base_url"], {"views": Views()}
    app.add_handlers(
        ".*$",
        [
            (url_path_join(base, "nodemgr", "gpu"), GpuHandler, views),
            (url_path_join(base, "nodemgr", "release"), ReleaseHandler, views),
        ],
    )
