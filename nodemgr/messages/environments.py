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
ENV_IS_NEW = Message(
    "there is no environment {env!r} yet",
    "say how many GPUs it may have (--gpus N)",
    code="usage",
)
ENV_EXISTS = Message(
    "there is an environment {env!r} already",
    "`nodemgr quota set {env}` changes it",
    code="refused",
)
ENV_IN_USE = Message(
    "{env} is not removed, since it is in use ({held})",
    "--force takes its GPUs and ends its jobs",
    code="refused",
)
DEFAULT_ABOVE_QUOTA = Message(
    "default_gpus: a request without a wish would get {default} GPUs, more than the quota's {gpus}",
    "lower --default-gpus",
    code="usage",
)
LIMIT_BELOW_QUEUE = Message(
    "max_priority: {limit} is below {queue}, the quota's own queue",
    "name that or a higher one, or none",
    code="usage",
)
IDLE_WITHOUT_TIME = Message(
    "--when-idle {action} needs the time after which a task is idle",
    "name it (--idle 30min), or --when-idle keep",
    code="usage",
)
MEMORY_WITHOUT_GPU = Message(
    "memory_bytes: a quota of no GPU has no memory either",
    "say --gpus, or leave --memory out",
    code="usage",
)
NO_DEVICE_NAME = Message(
    "no container could be given {env!r}",
    "CDI wants {form}",
    code="usage",
)
KEY_UNCHANGED = Message(
    "the key of {env} stays as it was: {error}",
    "mend that and run `nodemgr env rekey {env}` again",
    code="refused",
)
NO_UDP = Message(
    "this manager does not listen over UDP, so that there are no keys",
    "start it with `nodemgr serve --udp HOST:PORT`",
)
MORE_THAN_NODE = Message(
    "{env} may have {gpus} GPUs, but the node has {there}, and a request for more is refused",
    "set --gpus {there}, unless GPUs will be added",
)
WHOLE_GPU = Message(
    "{asked} per GPU is more than any GPU here has ({largest}), so each grant of {env} is a whole"
    " GPU",
    "set less with --memory, unless that is meant",
)
GRANT_PENDING = Message(
    "{missing} more on GPU {index} is pending until others there give memory back",
    "`nodemgr allocations` names them",
)
TASKS_LOST_GPUS = Message(
    "{tasks} running task(s) of {env} lost their GPUs and can allocate no more memory",
    "end their programs",
)
REQUESTS_REFUSED = Message(
    "{requests} waiting request(s) of {env} were refused",
    "its users need another environment",
)
CONTAINER_HAS_MUSL = Message(
    "this image has musl, whose linker takes no preload: its programs run, but the client is not"
    " active in them, and they are given no GPUs",
    "use an image with glibc (Debian, Ubuntu, Red Hat)",
)
CONTAINER_NOT_CHECKED = Notice(
    "the container starts, but its image is not checked for glibc: {error}"
)
