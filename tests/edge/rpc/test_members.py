"""Users and groups with access: the lists of an order, and the changes that it makes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodemgr.core.model.entities import Quota
from nodemgr.edge.kernel.processes import group_id, user_id
from nodemgr.edge.rpc.operation import MAX_NAMES, OperationError, access, members, named


def test_users_join_leave_and_are_replaced() -> None:
    before = Quota(1, users=("eve", "54321"), groups=("ml",))
    changes = {"add_users": ("bob", "eve"), "drop_users": ("54321",), "drop_groups": ("ml",)}
    given = named(before, dict(changes))
    assert given == {"users": ("eve", "bob"), "groups": ()}
    after = replace(before, **given)
    assert access(before, after) == {"gained": ["bob"], "lost": ["54321", "@ml"]}
    assert named(before, {"users": ("ann",)}) == {"users": ("ann",)}
    assert named(before, {"gpus": 2}) == {"gpus": 2}
    assert access(None, before) == {"gained": ["eve", "54321", "@ml"], "lost": []}


def test_a_user_leaves_by_name_or_number() -> None:
    before = Quota(1, users=("0", "nobody", "gone"), groups=("root",))
    assert named(before, {"drop_users": ("root", "65534")}) == {"users": ("gone",)}
    assert named(before, {"drop_users": ("gone",)}) == {"users": ("0", "nobody")}
    assert named(before, {"drop_groups": ("0",)}) == {"groups": ()}
    assert named(before, {"drop_users": ("daemon",)}) == {"users": ("0", "nobody", "gone")}
    for kind, noun in (("users", "user"), ("groups", "group")):
        with pytest.raises(OperationError, match=f"knows no {noun} 'no-such-name'"):
            named(before, {f"drop_{kind}": ("no-such-name",)})


def test_no_list_grows_beyond_what_one_order_may_name() -> None:
    before = Quota(1, users=tuple(map(str, range(MAX_NAMES))))
    with pytest.raises(OperationError, match=f"at most {MAX_NAMES} users"):
        named(before, {"add_users": ("daemon",)})
    whole = named(before, {"add_users": ("4000000",), "drop_users": ("0",)})["users"]
    assert len(whole) == MAX_NAMES


def test_a_user_without_an_entry_on_the_node_has_a_number() -> None:
    parse = members(user_id, group_id)["add_users"].parse
    assert parse(["+54321", "54321", "4294967294", "root"]) == ("54321", "4294967294", "root")
    for wrong in ("4294967295", "+", "-1", "no-such-user"):
        with pytest.raises(OperationError):
            parse([wrong])
