"""Lines of `nodemgr setup`: what each step finds, and what it would do. A verb stands before each.

A part stands in the line of a step: the purpose of what it makes.
"""

from __future__ import annotations

from client_plugin.messages.form import Notice

# -- what a step finds --

IS_THERE = Notice("{thing}: exists")
IS_NOT_THERE = Notice("{thing}: does not exist")
WAS_THERE_BEFORE = Notice("{thing}: existed before the setup")
EDITED_BY_HAND = Notice("{path}: was edited by hand")

# -- what it would do --

MAKES = Notice("{thing}: {why}")
REMOVES = Notice("{thing}")
