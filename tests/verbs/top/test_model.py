"""The picture of `top` without a terminal: widths, bars, columns, keys."""

from __future__ import annotations

from typing import Any

import pytest

from client_plugin.verbs.picture import bars, compact, keys, spans
from client_plugin.verbs.picture.bars import MemoryPart
from client_plugin.verbs.picture.model import KeyOrder, TopModel
from client_plugin.verbs.picture.pager import LONGEST_LINE, MOST_LINES, Pager
from client_plugin.verbs.picture.rows import NodeView
from tests.verbs.top import node_views
from tests.verbs.top.node_views import GIB, NOW_S

CLOCK = "14:03:22"
HOSTILE = "py\x1b[2Jthon\u202eevil\x07 <script>\r\n[red]train[/red]\t\udc80"


def line_width(line: spans.PictureLine) -> int:
    return sum(spans.width(text) for text, _ in line)


def shown(model: TopModel, cells: int = 80, height: int = 24) -> list[str]:
    """The lines as text, each of the right width."""
    lines = model.lines(cells, height, NOW_S + 3, CLOCK)
    assert [line_width(line) for line in lines] == [cells] * height
    return [spans.plain(line) for line in lines]


def model_of(view: NodeView) -> TopModel:
    model = TopModel("gpu-01")
    model.take(view)
    return model


def press(model: TopModel, *names: str) -> list[KeyOrder]:
    orders = [model.press(name, name if len(name) == 1 else None) for name in names]
    return [order for order in orders if order is not None]


def titles(model: TopModel, cells: int, first: str) -> list[str]:
    (line,) = (line for line in shown(model, cells) if line.lstrip().startswith(first))
    return line.split()


# -- spans and bars


@pytest.mark.parametrize(
    ("text", "cells"),
    [("abc", 3), ("日本", 4), ("e\u0301", 1), ("█░·", 3), ("\u1112\u1161\u11ab", 2), ("", 0)],
)
def test_the_width_of_a_text(text: str, cells: int) -> None:
    assert spans.width(text) == cells


@pytest.mark.parametrize(
    ("text", "most", "left"),
    [("abcdef", 6, "abcdef"), ("abcdef", 4, "abc…"), ("日本語", 4, "日…"), ("abc", 1, "…"),
     ("abc", 0, "")],
)  # fmt: skip
def test_a_text_is_cut_at_cells(text: str, most: int, left: str) -> None:
    assert spans.cut(text, most) == left
    assert spans.width(spans.filled(text, most)) == most


@pytest.mark.parametrize(
    ("text", "most", "left"),
    [("abcdef", 6, "abcdef"), ("abcdefg", 5, "ab…fg"), ("abcdefg", 4, "ab…g"),
     ("日本語日本", 7, "日本…本"), ("日本語日本", 6, "日…本"),
     ("abcdef", 2, "a…"), ("abcdef", 0, "")],
)  # fmt: skip
def test_a_name_is_cut_in_the_middle(text: str, most: int, left: str) -> None:
    assert spans.cut_inside(text, most) == left


def test_lines_for_poorer_terminals() -> None:
    line = [("█░·▲ é", "bold cyan"), ("x", "red")]
    assert spans.without_colours(line) == [("█░·▲ é", "bold"), ("x", "")]
    assert spans.in_ascii(line)[0] == ("#=.^ ?", "bold cyan")


@pytest.mark.parametrize("cells", [1, 4, 9, 40])
def test_wrapped_lines_hold_all_words(cells: int) -> None:
    text = "take the GPUs of t17 back? averyverylongname y"
    lines = spans.wrapped(text, cells)
    assert all(0 < spans.width(line) <= cells for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_a_memory_bar_shows_use_grant_and_rest() -> None:
    parts = [MemoryPart(20, 40, "cyan"), MemoryPart(10, 30, "green")]
    assert bars.memory_bar(parts, 100, 10) == [
        ("██", "cyan"), ("░░", "cyan"), ("█", "green"), ("░░", "green"), ("···", "dim"),
    ]  # fmt: skip
    assert bars.memory_bar([], 100, 4) == [("····", "dim")]
    assert bars.memory_bar([MemoryPart(0, 0, "cyan")], 0, 4) == [("····", "dim")]


def test_a_memory_bar_stays_in_its_cells() -> None:
    over = [MemoryPart(90, 20, "cyan"), MemoryPart(50, 80, "green")]
    assert line_width(bars.memory_bar(over, 100, 10)) == 10
    assert bars.unattributed([MemoryPart(1, 2, "")], 5, 9) == [
        MemoryPart(1, 2, ""),
        MemoryPart(4, 7, ""),
    ]


@pytest.mark.parametrize(
    ("percent", "bar"), [(0, "    "), (50, "██  "), (55, "██▏ "), (100, "████"), (None, "    ")]
)
def test_a_bar_of_use(percent: int | None, bar: str) -> None:
    assert "".join(text for text, _ in bars.use_bar(percent, 4)) == bar


@pytest.mark.parametrize(
    ("count", "cells", "lines", "beside"),
    [(4, 80, 7, 1), (16, 80, 7, 2), (16, 160, 7, 3), (16, 20, 7, 1), (0, 80, 7, 1)],
)
def test_gpus_stand_beside_one_another_where_lines_lack(
    count: int, cells: int, lines: int, beside: int
) -> None:
    assert compact.beside(count, cells, lines) == beside


# -- columns


def test_all_columns_in_a_wide_terminal() -> None:
    model = model_of(node_views.small_node())
    assert titles(model, 200, "TASK") == [
        "TASK", "JOB", "ENV", "STATE", "USER", "CONTAINER", "GPUS", "MEM", "UTIL", "IDLE", "AGE",
        "CPU", "HOST", "COMMAND",
    ]  # fmt: skip
    assert titles(model, 200, "PLACE") == [
        "PLACE", "ID", "ENV", "USER", "GPUS", "QUEUE", "STARTS", "ABOUT", "WAITED", "NAME", "WHY",
    ]  # fmt: skip


def test_the_columns_that_stay_at_80() -> None:
    model = model_of(node_views.full_node())
    assert titles(model, 80, "TASK")[:8] == [
        "TASK", "ENV", "USER", "GPUS", "MEM", "UTIL", "IDLE", "AGE",
    ]  # fmt: skip
    assert titles(model, 40, "TASK")[:4] == ["TASK", "ENV", "MEM", "UTIL"]


def test_starts_about_has_a_column_where_a_row_has_an_estimate() -> None:
    """Without it WHY has the room at 80 columns."""
    view = node_views.small_node()
    assert "STARTS ABOUT" in " ".join(titles(model_of(view), 80, "PLACE"))
    for row in view.queue:
        row["expected_start"] = None
    assert titles(model_of(view), 80, "PLACE") == [
        "PLACE", "ID", "ENV", "USER", "GPUS", "WAITED", "WHY",
    ]  # fmt: skip


def test_a_long_name_keeps_both_its_ends() -> None:
    view = node_views.small_node()
    view.status["tasks"][0]["env"] = "vision-lab-of-the-second-floor-gpu-a"
    (row,) = (line for line in shown(model_of(view), 160) if line.startswith("t1 "))
    assert "vision-lab-o…floor-gpu-a" in row


def test_a_class_and_a_share_have_columns_where_a_task_has_one() -> None:
    view = node_views.small_node()
    view.status["tasks"][0].update(
        {"class": "best-effort", "compute_percent": 40, "compute_granted_percent": 10}
    )
    model = model_of(view)
    assert titles(model, 200, "TASK")[3:7] == ["STATE", "CLASS", "SHARE", "USER"]
    (row,) = (line for line in shown(model, 200) if "best-effort" in line)
    assert "10 of 40 %" in row


def test_a_suspended_task_has_no_part_of_the_memory_bar() -> None:
    view = node_views.view(
        [node_views.gpu(0)], [node_views.task(1, "alice", [0], suspended=True)], []
    )
    view.status["gpus"][0]["memory_granted_bytes"] = 0
    view.status["tasks"][0]["gpu_memory_bytes"] = [0]
    view.status["gpus"][0]["memory_used_bytes"] = 0
    assert not [line for line in shown(model_of(view), 120) if bars.GRANTED in line]


def test_figures_that_are_unknown_are_a_dash() -> None:
    (row,) = (line for line in shown(model_of(node_views.small_node()), 120) if "t4 " in line)
    assert row.split()[5:9] == ["2", "-", "-", "-"]


@pytest.mark.parametrize(("cells", "height"), [(20, 5), (1, 1), (7, 2), (40, 9), (300, 100)])
@pytest.mark.parametrize("name", ["empty_node", "small_node", "full_node"])
def test_every_size_has_its_picture(name: str, cells: int, height: int) -> None:
    model = model_of(getattr(node_views, name)())
    for key in ("", "tab", "tab", "question_mark", "escape", "enter", "escape", "slash", "x"):
        press(model, key)
        shown(model, cells, height)


def test_a_small_terminal_shows_the_panel_that_has_the_keys() -> None:
    model = model_of(node_views.small_node())
    assert shown(model, 20, 5)[1].startswith("TASK")
    press(model, "tab")
    assert shown(model, 20, 5)[1].startswith("PLACE")
    press(model, "tab")
    assert shown(model, 20, 5)[1].startswith("GPU")
    press(model, "shift+tab", "shift+tab")
    assert shown(model, 20, 5)[1].startswith("TASK")


def test_nothing_reaches_the_terminal_raw() -> None:
    view = node_views.view(
        [node_views.gpu(0, name=HOSTILE)],
        [node_views.task(1, HOSTILE, [0], command=HOSTILE, users=[HOSTILE],
                        places=[{"user": HOSTILE, "container_name": HOSTILE, "container": None}])],
        [node_views.waiting(2, HOSTILE, reason=HOSTILE, name=HOSTILE, users=[HOSTILE])],
        (HOSTILE,),
    )  # fmt: skip
    model = TopModel(HOSTILE)
    model.take(view)
    texts = shown(model, 300, 30)
    press(model, "r")
    texts += shown(model, 300, 30)
    press(model, "n", "enter")
    texts += shown(model, 300, 30)
    press(model, "escape")
    model.fail(HOSTILE)
    model.answered(HOSTILE, True)
    texts += shown(model, 300, 30)
    texts += [spans.plain(line) for line in model.whole(300, NOW_S, CLOCK)]
    assert "".join(texts).isprintable()
    assert sum("<script>" in text for text in texts) > 5


# -- keys


def test_every_key_has_an_action_and_a_place_in_the_help() -> None:
    model = model_of(node_views.small_node())
    for action in keys.ACTIONS.values():
        assert callable(getattr(model, f"_{action}")), action
    names = [name for key in keys.KEYS for name in key.names]
    assert len(names) == len(set(names))
    text = "\n".join(keys.help_lines(200))
    assert all(key.shown in text for key in keys.KEYS)


@pytest.mark.parametrize("cells", [5, 20, 40, 80, 200])
def test_the_last_line_names_as_many_keys_as_fit(cells: int) -> None:
    line = keys.last_line(cells)
    assert len(line) <= cells
    assert cells < 20 or line.startswith("q quit  ? help")


def test_rows_are_sorted_by_column_after_column() -> None:
    model = model_of(node_views.small_node())

    def order() -> tuple[str, list[str]]:
        lines = shown(model, 120)
        at = next(at for at, line in enumerate(lines) if line.startswith("TASK"))
        marked = [word for word in lines[at].split() if word[-1] in "▲▼"]
        return " ".join(marked), [line.split()[0] for line in lines[at + 1 : at + 5]]

    assert order() == ("", ["t1", "t2", "t3", "t4"])
    press(model, "s")
    assert order() == ("ENV▲", ["t1", "t2", "t4", "t3"])
    press(model, "S")
    assert order() == ("ENV▼", ["t3", "t2", "t4", "t1"])
    while "MEM" not in order()[0]:
        press(model, "s")
    assert order() == ("MEM▼", ["t3", "t1", "t2", "t4"]), "the unknown one is last"
    press(model, "S")
    assert order() == ("MEM▲", ["t2", "t1", "t3", "t4"])
    while order()[0]:
        press(model, "s")
    assert order()[1] == ["t1", "t2", "t3", "t4"]


def test_a_filter_leaves_the_rows_that_have_all_words() -> None:
    model = model_of(node_views.small_node())
    press(model, "slash", *"BOB-", "backspace", " ", *"pyt")
    assert "Filter: BOB pyt_" in shown(model)[-1]
    texts = shown(model)
    assert [line.split()[0] for line in texts if line.startswith("t")] == ["t2", "t4"]
    assert "Nothing waits." in texts
    press(model, "enter")
    assert "Esc: all rows" in shown(model)[-1]
    press(model, "escape")
    assert len([line for line in shown(model) if line.startswith("t")]) == 4


def test_the_chosen_row_stays_chosen_while_rows_come_and_go() -> None:
    model = model_of(node_views.small_node())
    shown(model)
    press(model, "down", "down")
    view = node_views.small_node()
    view.status["tasks"] = view.status["tasks"][1:]
    model.take(view)
    shown(model)
    press(model, "r")
    assert press(model, "y") == [KeyOrder("release", "t3")]
    view.status["tasks"] = view.status["tasks"][:1]
    model.take(view)
    shown(model)
    press(model, "r")
    assert press(model, "y") == [KeyOrder("release", "t2")]


def test_moves_of_a_page_and_to_the_ends() -> None:
    model = model_of(node_views.full_node())
    shown(model)
    press(model, "end")
    assert any("44-50 of 50" in line for line in shown(model))
    press(model, "home")
    assert any("1-7 of 50" in line for line in shown(model))
    press(model, "pagedown")
    assert not any("1-7 of 50" in line for line in shown(model))
    press(model, "pageup", "up", "k")
    assert any("1-7 of 50" in line for line in shown(model))


def question(model: TopModel) -> str:
    return " ".join(line for line in shown(model)[-3:] if line.strip())


def test_release_asks_first() -> None:
    model = model_of(node_views.small_node())
    shown(model)
    assert press(model, "r") == []
    assert "Take the GPUs of t1 of alice back? y: yes, any other key: no." in question(model)
    assert "(alice@alice-lab: torchrun" in question(model)
    assert press(model, "r") == [], "any other key is no"
    assert "Nothing was changed." in question(model)
    press(model, "r")
    assert press(model, "y") == [KeyOrder("release", "t1")]


def test_a_waiting_request_is_released_and_a_waiting_job_is_not() -> None:
    model = model_of(node_views.small_node())
    shown(model)
    press(model, "tab", "r")
    assert "j1 holds no GPU yet: w withdraws it." in question(model)
    press(model, "down", "r")
    assert press(model, "y") == [KeyOrder("release", "r2")]


def test_withdraw_asks_first() -> None:
    model = model_of(node_views.small_node())
    shown(model)
    press(model, "w")
    assert press(model, "y") == [KeyOrder("withdraw", "j7")], "the job of the task"
    press(model, "down", "w")
    assert "t2 is no job: r takes its GPUs back." in question(model)
    press(model, "tab", "down", "down", "w")
    assert "Withdraw j9 (2 jobs) of ci? y: yes," in question(model)
    assert press(model, "Y") == [KeyOrder("withdraw", "j9")]


def test_hold_and_unhold() -> None:
    model = model_of(node_views.small_node())
    shown(model)
    assert press(model, "down", "h") == []
    assert "t2 is no job: only jobs can be held." in question(model)
    press(model, "tab")
    assert press(model, "h") == [KeyOrder("hold", "j1")]
    assert press(model, "end", "h") == [KeyOrder("unhold", "j5")]


def test_orders_need_a_row() -> None:
    model = model_of(node_views.empty_node())
    shown(model)
    for key in "rwhl":
        assert press(model, key) == []
        assert "No task uses a GPU." in question(model)
    press(model, "tab", "r")
    assert "Nothing waits." in question(model)
    press(model, "tab", "r")
    assert "choose a task or an entry of the queue first" in question(model)
    press(model, "s")
    assert "order of their indices" in question(model)


def test_the_output_of_a_job() -> None:
    model = model_of(node_views.small_node())
    shown(model)
    press(model, "down", "l")
    assert "only jobs have a log" in question(model)
    assert press(model, "up", "l") == [KeyOrder("log", "j7")]
    assert model.log_of == "j7"
    model.add_log("j7", b"epoch 1\nloss \x1b[31m0.5\x1b[0m\r\n 10%\r 99%\rdone 100%\npart")
    model.add_log("j8", b"of another job\n")
    texts = shown(model)
    assert texts[:5] == [
        "Output of j7 (Esc: back)",
        "  epoch 1", "  loss \\x1b[31m0.5\\x1b[0m", "  done 100%", "  part",
    ]  # fmt: skip
    model.add_log("j7", b"ly\n" + b"".join(b"line %d\n" % at for at in range(3 * MOST_LINES)))
    assert f"line {3 * MOST_LINES - 1}" in shown(model)[-2], "it follows its end"
    press(model, "home")
    model.add_log("j7", b"new\n")
    assert "new" not in shown(model), "and stays where the reader is"
    press(model, "escape")
    assert model.log_of == ""
    press(model, "tab", "down", "down", "l")
    assert "e shows each job of the array" in question(model)
    press(model, "e")
    shown(model)
    assert press(model, "l") == [KeyOrder("log", "j9.0")]


def test_all_fields_of_a_row_and_the_help() -> None:
    model = model_of(node_views.small_node())
    shown(model, 40)
    press(model, "enter")
    texts = shown(model, 40)
    assert texts[0] == "t1 (Esc: back)"
    assert any(line.split() == ["HOST", "2", "GiB"] for line in texts)
    press(model, "x", "s", "?")
    assert "Keys of nodemgr top" in shown(model)[0]
    press(model, "q")
    assert "Keys" not in shown(model)[0]
    assert press(model, "q") == [KeyOrder("quit", "")]


def test_a_long_line_goes_on_in_the_next_row() -> None:
    pager = Pager("title", at_end=True)
    pager.add("0123456789日本 end\n".encode())
    rows = [spans.plain(line) for line in pager.lines(7, 9)]
    assert rows == ["title", "  01234", "56789日", "本 end"]
    pager.lines(7, 3)
    pager.move(-1)
    assert [spans.plain(line) for line in pager.lines(7, 3)][1:] == ["  01234", "56789日"]


def test_a_log_without_an_end_of_line_is_bounded() -> None:
    pager = Pager("title", at_end=True)
    for _ in range(20):
        pager.add(b"x" * 2_000_000)
    assert sum(map(len, pager._all())) <= (MOST_LINES + 1) * (LONGEST_LINE + len("  "))
    assert "x" in spans.plain(pager.lines(80, 3)[2])


def test_the_help_of_a_narrow_terminal_holds_all_words() -> None:
    text = " ".join(" ".join(keys.help_lines(40)).split())
    assert all(key.help in text for key in keys.KEYS)
    assert max(map(len, keys.help_lines(40))) <= 40


def test_a_page_of_few_lines_does_not_move() -> None:
    pager = Pager("title", ["one", "two"])
    assert [spans.plain(line) for line in pager.lines(10, 5)] == ["title", "one", "two"]
    pager.move(5)
    assert spans.plain(pager.lines(10, 5)[1]) == "one"
    assert spans.plain(pager.lines(10, 2)[1]) == "one"
    pager.move(1)
    assert spans.plain(pager.lines(10, 2)[1]) == "two"


# -- views


def test_figures_replace_figures_alone() -> None:
    view = node_views.small_node()
    figures: dict[str, Any] = {
        "gpus": [{"uuid": "GPU-0", "utilization_percent": 5}],
        "tasks": [{"id": row["id"], "utilization_percent": 99} for row in view.status["tasks"]],
    }
    assert view.has_tasks_of(figures)
    model = model_of(view)
    model.take_figures(figures)
    texts = shown(model, 120)
    assert sum("99 %" in line for line in texts) == 4
    assert any("  5 %" in line for line in texts)
    figures["tasks"].pop()
    assert not view.has_tasks_of(figures)


def test_ages_pass_without_a_reading() -> None:
    model = model_of(node_views.small_node())

    def age(now_s: float) -> str:
        lines = [spans.plain(line) for line in model.lines(120, 24, now_s, CLOCK)]
        (row,) = (line for line in lines if line.startswith("t1 "))
        return row[: row.index("23 %")].split()[-1]

    assert age(NOW_S) == "0:00:52"
    assert age(NOW_S + 7) == "0:00:59"
    assert age(NOW_S + 68) == "0:02:00"


def test_jobs_without_a_gpu_are_among_the_tasks() -> None:
    view = node_views.small_node()
    job = {
        "id": "j44", "job": "j44", "env": "ci", "state": "running", "users": ["ci"], "place": None,
        "command": "make", "since": int(NOW_S) - 100, "gpus": 0, "request": None,
    }  # fmt: skip
    view.status["jobs"] = [job, {**job, "id": "j7", "job": "j7"}]
    model = model_of(view)
    texts = shown(model)
    assert sum("j44" in line for line in texts) == 1
    press(model, "end", "r")
    assert "j44 holds no GPU: w ends it." in question(model)
    press(model, "w")
    assert press(model, "y") == [KeyOrder("withdraw", "j44")]


def test_jobs_with_a_cgroup_have_their_use_of_the_host() -> None:
    view = node_views.small_node()
    used = {
        "cpu_seconds": 3_725.4, "host_memory_bytes": 3 << 30, "host_peak_bytes": 7 << 30,
        "read_bytes": 11 << 30, "written_bytes": 13 << 30,
    }  # fmt: skip
    job = {
        "id": "j44", "job": "j44", "env": "ci", "state": "running", "users": ["ci"], "place": None,
        "command": "make", "since": int(NOW_S) - 100, "gpus": 0, "request": None, **used,
    }  # fmt: skip
    view.status["jobs"] = [job, {**job, "id": "j7", "job": "j7", "cpu_seconds": 60.0}]
    model = model_of(view)
    assert "CPU TIME MOST HOST READ WRITTEN" in " ".join(titles(model, 240, "TASK"))

    def row(name: str) -> str:
        (found,) = (line for line in shown(model, 240) if name in line.split()[:2])
        return " ".join(found.split())

    assert " 3 GiB 1:02:05 7 GiB 11 GiB 13 GiB make" in row("j44")
    assert " 2 GiB 0:01:00 7 GiB 11 GiB 13 GiB" in row("j7"), "its task has its own resident memory"
    figures: dict[str, Any] = {
        "gpus": [], "tasks": [{"id": row["id"]} for row in view.status["tasks"]],
        "jobs": [{"job": "j44", **used, "cpu_seconds": 7_200, "host_memory_bytes": 5 << 30}],
    }  # fmt: skip
    model.take_figures(figures)
    assert " 5 GiB 2:00:00 7 GiB" in row("j44")


def test_memory_of_no_env_is_in_the_bar() -> None:
    view = node_views.view([node_views.gpu(0, memory_used_bytes=40 * GIB)], [], [])
    model = model_of(view)
    (row,) = (line for line in shown(model) if line.startswith("  0"))
    assert row.count("█") == row.count("·")


def test_an_absent_manager_is_said_and_forgotten() -> None:
    model = model_of(node_views.small_node())
    model.fail("No manager answers.")
    texts = shown(model)
    assert texts[1] == "No manager answers."
    assert any(line.startswith("t1") for line in texts)
    model.take(node_views.small_node())
    assert "No manager answers." not in shown(model)


def test_warnings_stand_below_the_first_line() -> None:
    model = model_of(node_views.view([node_views.gpu(0)], [], [], ("warning: one", "warning: two")))
    assert shown(model)[1] == "warning: one (and 1 more: nodemgr status)"


def test_the_whole_picture_has_all_rows() -> None:
    model = model_of(node_views.full_node())
    texts = [spans.plain(line) for line in model.whole(80, NOW_S, CLOCK)]
    assert sum(line.startswith("t") for line in texts) == 50
    assert texts[-1] == "and 800 more: nodemgr queue"
    assert not any(
        "reverse" in style for line in model.whole(80, NOW_S, CLOCK) for _, style in line
    )
