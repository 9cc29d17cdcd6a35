"""The messages about a command line, its values, and the lines of `nodemgr submit --from`.

The parser imports this table when it finds a mistake: no verb that succeeds needs it.
"""

from __future__ import annotations

from .form import Message, Part

# -- verbs and options --

SEE_HELP = Message("{line}", "(see: {path} --help)")
NO_SUCH_COMMAND = Part("No such command {word!r}{meant}")
KNOWN_COMMANDS = Part("; there are {known}")
ARGUMENT_MISSING = Part("Missing argument '{shown}'")

# -- sizes, durations, nodes --

NO_UNIT_VALUE = Part("{text!r} is no {what}: {form}")
BARE_NUMBER = Part("{text!r} is a bare number: {form}")

# -- lines of a file of jobs --

FILE_OF_JOBS_UNREADABLE = Message(
    "{name} cannot be read: {error}", "name a file of commands, or - for stdin"
)
