"""Messages of orders about environments and their quotas."""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
    Notice,
)

NO_ENV = Message(
    "there is no environment {env!r} here",
    "`nodemgr quota set {env} --gpus N` makes it{meant}",
    code="unknown_env",
)
CONTAINER_HAS_MUSL = Message(
    "this image has musl, whose linker takes no preload: its programs run, but the client is not"
    " active in them, and they are given no GPUs",
    "use an image with glibc (Debian, Ubuntu, Red Hat)",
)
CONTAINER_NOT_CHECKED = Notice(
    "the container starts, but its image is not checked for glibc: {error}"
)
