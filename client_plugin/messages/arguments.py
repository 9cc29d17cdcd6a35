"""The messages about a command line, its values, and the lines of `nodemgr submit --from`.

The parser imports this table when it finds a mistake: no verb that succeeds needs it.
"""

from __future__ import annotations

from .form import Message, Part

# -- verbs and options --

SEE_HELP = Message("{line}", "(see: {path} --help)")
NO_SUCH_COMMAND = Part("No such command {word!r}{meant}")
KNOWN_COMMANDS = Part("; there are {known}")
NO_SUCH_OPTION = Part("No such option {name!r}{meant}")
JSON_IN_FRONT = Part("write --json behind the verb that it belongs to")
MISSING_OPTION = Part("Missing option {name!r}")
ARGUMENT_MISSING = Part("Missing argument '{shown}'")
MISSING_COMMAND = Part("Missing command: {known}")
FLAG_WITH_VALUE = Part("Option {name!r} does not take a value")
OPTION_WITHOUT_VALUE = Part("Option {name!r} requires an argument")
EXTRA_ARGUMENT = Part("Got unexpected extra argument ({word}){meant}")
EXTRA_ARGUMENTS = Part("Got unexpected extra arguments ({words})")
INVALID_VALUE = Part("Invalid value for '{name}': {wrong}")
VERB_OF_THE_NODE = Message(
    "{verb} is a verb of the node's own nodemgr",
    "in a container there are {known}",
)

# -- values --

NO_WHOLE_NUMBER_BETWEEN = Part("{text!r} is no whole number from {low} to {high}")
NO_WHOLE_NUMBER_ABOVE = Part("{text!r} is no whole number of at least {low}")
NO_GPU_RATES = Part(
    "{text!r} is no GPU model: write its name, or NAME:TFLOPS:GBPS:GIB with rates above 0 such as "
    "own:19.5:1555:40",
)
NO_GPU_NAME = Part("{text!r} is no GPU model: write its name, 1 to {limit} printable characters")
NO_NAME = Part("{text!r} is no name of {what}: {form}")
NO_DISPLAY_NAME = Part("{text!r} is no name to show: write 1 to {limit} printable characters")
NO_JOB_ID = Part("{text!r} is no job: write its id as `nodemgr queue` shows it ({known})")
NO_ARRAY = Part("{text!r} is no array: {form}")
ARRAY_BACKWARDS = Part("{text!r} runs backwards: {form}")
LARGE_ARRAY = Part("{text!r} has more than {limit} elements: submit several arrays")
FUTURE_MOMENT = Part("{text} is still to come: name a time in the past")
NO_MOMENT = Part(
    "{text!r} is no time: write how long ago (30min, 2h, 7d) or a date (2026-01-31T12:00)",
)
JOB_AS_TASK = Part(
    "{text!r} is a job: name its task as nodemgr status shows it (nodemgr queue withdraw {text}"
    " ends the job)",
)
NO_TASK_ID = Part(
    "{text!r} is no task: write its id as `nodemgr status` shows it (t17, or r17 in the queue)",
)

# -- sizes, durations, nodes --

NO_UNIT_VALUE = Part("{text!r} is no {what}: {form}")
SIGNED_VALUE = Part("{text!r}: a {what} has no sign: {form}")
BARE_NUMBER = Part("{text!r} is a bare number: {form}")
UNKNOWN_UNIT = Part("{text!r}: {unit!r} is no unit of a {what}: {form}")
SIZE_OF_ZERO = Part("{text!r}: a size of zero grants nothing: {form}")
SMALL_SIZE = Part("{text!r} is less than 1MiB, too small for any GPU program: {form}")
LARGE_SIZE = Part("{text!r} is more memory than any node has (at most 255TiB): {form}")
SHARE_OF_ZERO = Part("{text!r}: a share of zero gives no compute: {form}")
LARGE_SHARE = Part("{text!r} is more than a whole GPU: {form}")
LONG_DURATION = Part("{text!r} is longer than a year: {form}")
NODE_OF_WRONG_COUNT = Part("{text!r}: a node has 1 to {limit} GPUs: {form}")

# -- lines of a file of jobs --

OPEN_QUOTATION = Part("a quotation is not closed, or has a character that needs a shell ($ or `)")
SHELL_NEEDED = Part("{letter} needs a shell, and none runs here: write sh -c '...'")
NUL_IN_ARGUMENT = Part("has a NUL character, which no argument can have")
LINE_WITHOUT_COMMAND = Part("names no command")
LINE_NOT_JSON = Part("is no JSON object: {error}")
LINE_TOO_DEEP = Part("is nested too deep: the values of a job are texts, numbers, lists")
OBJECT_WITHOUT_COMMAND = Part('names no command: "{key}" is a text, or a list of words')
NO_OPTION_OF_JOB = Part("{name!r} is no option of a job (known: {known})")
NOT_TRUE_OR_FALSE = Part("{name} is true or false")
NOT_TEXT_OR_NUMBER = Part("{name} is a text or a whole number")
WRONG_OPTION_OF_JOB = Part("{name}: {wrong}")
LONG_LINE = Part("is longer than {limit} bytes")
FILE_OF_JOBS_UNREADABLE = Message(
    "{name} cannot be read: {error}", "name a file of commands, or - for stdin"
)

# -- the output --

OUTPUT_NOT_WRITTEN = Message(
    "the output cannot be written: {error}", "free space there, or write it elsewhere"
)
NO_RANGE = Message(
    "{text!r} is neither a number of GPUs nor a range",
    "write a number such as 2, or the least and the most, such as 1-4",
)
MEMORY_RANGE_BACKWARDS = Message(
    "{text!r} is no range of memory: it ends before it begins", "write {right}"
)
NO_PATH = Message("{text!r} is no path", "name a file or a directory")
MEMORY_RANGE_OPEN = Message(
    "{text!r} is no range of memory: an end is missing", "write it as in 8GiB-24GiB"
)
RANGE_BACKWARDS = Message("{text!r} is no range of GPUs: it ends before it begins", "write {right}")
