"""Messages about the administrator's settings: a value in config.toml, a variable, a flag."""

from __future__ import annotations

from client_plugin.messages.form import Message, Part

WRONG_SETTING = Message(
    "{where}: {wrong}",
    code="usage",
)
UNKNOWN_SETTING = Message(
    "{where}: unknown setting {name!r}",
    "docs/settings.md lists all{meant}",
    code="usage",
)
CONFIG_UNREADABLE = Message(
    "{path} cannot be read ({error})",
    "mend its rights, or name another file with --config",
    code="usage",
)
CONFIG_NOT_TOML = Message("{path} is no TOML ({error})", "mend that line of the file", code="usage")
ONE_DIRECTORY = Message(
    "run_dir and state_dir are both {path}, and only the first is shown to users",
    "name two directories",
    code="usage",
)
SHORT_TIMEOUT = Message(
    "timeout_ms ({timeout_ms}) must be at least twice beat_ms ({beat_ms}), else one late beat ends"
    " a task",
    code="usage",
)
NO_CLIENT_ADDRESS = Message(
    "udp listens on every address ({host}), but clients must know one",
    'say client_address = "HOST:PORT" (NODEMGR_CLIENT_ADDRESS)',
    code="usage",
)

# -- what WRONG_SETTING says of a value --

MUST_BE = Part("must be {form}")
MUST_BE_TEXT_THERE = Part("must be a text that is not empty")
MUST_BE_ADDRESS = Part("{value!r} must be HOST:PORT, e.g. 127.0.0.1:7000")
NOT_CDI_KIND = Part("{value!r} is no kind of CDI device: {form}")
MUST_BE_HOSTS = Part("must be a list of host names")
NOT_HOST = Part("{value!r} is no host name: leave out scheme, port and path")
NOT_SITE_PATH = Part("{value!r} is no path of a site: write it as /gpus")
MUST_BE_QUEUES = Part("must be a table of queue names and ranks, e.g. high=300, normal=200")
NOT_QUEUE = Part("{value!r} is no name of a queue: 1 to 32 of a-z 0-9 . _ -")
MUST_HOLD_NORMAL = Part("must hold the queue normal, which quotas name by default")
