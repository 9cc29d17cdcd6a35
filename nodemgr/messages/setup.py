"""Lines of `nodemgr setup`: what each step finds, and what it would do. A verb stands before each.

A part stands in the line of a step: the purpose of what it makes.
"""

from __future__ import annotations

from client_plugin.messages.form import JOB, NODE, Message, Notice, Part

# -- what a step finds --

IS_THERE = Notice(NODE, "{thing}: exists")
IS_NOT_THERE = Notice(NODE, "{thing}: does not exist")
WAS_THERE_BEFORE = Notice(NODE, "{thing}: existed before the setup")
IS_AS_IT_SHOULD_BE = Notice(NODE, "{path}: is as it should be")
EDITED_BY_HAND = Notice(NODE, "{path}: was edited by hand")
UNIT_IS_ENABLED = Notice(NODE, "{unit}: is enabled")
UNIT_NOT_OURS = Notice(NODE, "{unit}: was not enabled by a setup")
NOTHING_LEFT = Notice(NODE, "nothing is left of a manager")
MADE_AT_START = Notice(NODE, "{path}: the manager makes it at its start")
WITHOUT_SYSTEMD = Message(
    NODE, "systemd is missing", "start `{command}` at boot by another init system"
)

# -- what it would do --

MAKES = Notice(NODE, "{thing}: {why}")
MAKES_DIRECTORY = Notice(NODE, "{path} ({mode}): {why}")
REMOVES = Notice(NODE, "{thing}")
REMOVES_EMPTY = Notice(NODE, "{path}: if nothing else is in it")
REMOVES_TRACES = Notice(NODE, "{paths}: made by the manager")
KEEPS_DIRECTORY = Message(NODE, "{path}: {why}", "remove it if it is no longer needed")
STARTS_UNIT = Notice(
    NODE, "{unit}: a running one goes on as it is until `systemctl restart nodemgr`"
)
STARTS_AT_BOOT = Notice(NODE, "{unit}: starts with the next boot")

# -- the purposes --

SETTINGS_DIRECTORY = Part(NODE, "settings, and a record of this setup")
GROUP_OF_ADMINS = Part(NODE, "its members may order the manager, as root may")
GROUP_OF_PAGE = Part(NODE, "the web page's process may ask the manager")
SETTINGS_FILE = Part(NODE, "settings, each commented out")
STATE_DIRECTORY = Part(NODE, "quotas, leases, history and keys")
DEVICES_DIRECTORY = Part(NODE, "where container runtimes look for devices")
SERVICE_OF_JOBS = Part(NODE, "the service that starts batch jobs")
SERVICE_OF_PAGE = Part(NODE, "the service that serves the web page")
SERVICE_OF_MANAGER = Part(NODE, "the service")

# -- the whole --

NOTHING_TO_DO = Notice(NODE, "nothing to do")
UNINSTALLED = Notice(NODE, "done")
JOBS_GO_ON = Notice(
    JOB,
    "warning: {jobs} run, and go on to their end without a manager; nodemgr queue withdraw --name"
    " '*' ends them before",
)
SET_UP = Notice(NODE, "done; next: nodemgr env create ENV --gpus N, and usermod -aG {group} ADMIN")
DONE_BEFORE = Part(NODE, "done before: {steps}")
NO_STEP_BEFORE = Part(NODE, "no step was done before")

# -- warnings --

UNSEEN_BY_SERVICE = Message(
    NODE,
    "{path} lies where a service with PrivateTmp= sees nothing",
    "install nodemgr elsewhere, e.g. into /opt/nodemgr",
)
PATH_NOT_READ = Message(NODE, "{path} cannot be read ({error})", "mend that, then run it again")
CHANGED_BY_OTHERS = Message(
    NODE,
    "{path} can be changed by others than root ({who}), and each of them becomes root by this"
    " service",
    "install nodemgr where root alone may write",
)
