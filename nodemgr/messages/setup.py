"""Lines of `nodemgr setup`: what each step finds, and what it would do. A verb stands before each.

A part stands in the line of a step: the purpose of what it makes.
"""

from __future__ import annotations

from client_plugin.messages.form import Message, Notice, Part

# -- what a step finds --

IS_THERE = Notice("{thing}: exists")
IS_NOT_THERE = Notice("{thing}: does not exist")
WAS_THERE_BEFORE = Notice("{thing}: existed before the setup")
IS_AS_IT_SHOULD_BE = Notice("{path}: is as it should be")
IS_OF_PACKAGE = Notice("{path}: is there, from a package")
EDITED_BY_HAND = Notice("{path}: was edited by hand")
UNIT_IS_ENABLED = Notice("{unit}: is enabled")
UNIT_NOT_OURS = Notice("{unit}: was not enabled by a setup")
NOTHING_LEFT = Notice("nothing is left of a manager")
MADE_AT_START = Notice("{path}: the manager makes it at its start")
WITHOUT_SYSTEMD = Message("systemd is missing", "start `{command}` at boot by another init system")

# -- what it would do --

MAKES = Notice("{thing}: {why}")
MAKES_DIRECTORY = Notice("{path} ({mode}): {why}")
REMOVES = Notice("{thing}")
REMOVES_EMPTY = Notice("{path}: if nothing else is in it")
REMOVES_TRACES = Notice("{paths}: made by the manager")
KEEPS_DIRECTORY = Message("{path}: {why}", "remove it if it is no longer needed")
STARTS_UNIT = Notice("{unit}: a running one goes on as it is until `systemctl restart nodemgr`")
STARTS_AT_BOOT = Notice("{unit}: starts with the next boot")

# -- the purposes --

SETTINGS_DIRECTORY = Part("settings, and a record of this setup")
GROUP_OF_ADMINS = Part("its members may order the manager, as root may")
GROUP_OF_PAGE = Part("the web page's process may ask the manager")
SETTINGS_FILE = Part("settings, each commented out")
STATE_DIRECTORY = Part("quotas, leases, history and keys")
DEVICES_DIRECTORY = Part("where container runtimes look for devices")
SERVICE_OF_JOBS = Part("the service that starts batch jobs")
SERVICE_OF_PAGE = Part("the service that serves the web page")
SERVICE_OF_MANAGER = Part("the service")

# -- the whole --

NOTHING_TO_DO = Notice("nothing to do")
UNINSTALLED = Notice("done")
JOBS_GO_ON = Notice(
    "warning: {jobs} run, and go on to their end without a manager; nodemgr queue withdraw --name"
    " '*' ends them before",
)
SET_UP = Notice("done; next: nodemgr env create ENV --gpus N, and usermod -aG {group} ADMIN")
DONE_BEFORE = Part("done before: {steps}")
NO_STEP_BEFORE = Part("no step was done before")

# -- warnings --

UNSEEN_BY_SERVICE = Message(
    "{path} lies where a service with PrivateTmp= sees nothing",
    "install nodemgr elsewhere, e.g. into /opt/nodemgr",
)
PATH_NOT_READ = Message("{path} cannot be read ({error})", "mend that, then run it again")
CHANGED_BY_OTHERS = Message(
    "{path} can be changed by others than root ({who}), and each of them becomes root by this"
    " service",
    "install nodemgr where root alone may write",
)
