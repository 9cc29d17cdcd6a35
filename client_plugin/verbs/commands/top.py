"""`nodemgr top`: GPUs, tasks and the queue as a picture, live; with --once printed once."""

from __future__ import annotations

import os
import sys
import time

from client_plugin.messages.form import stated
from client_plugin.verbs import VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import RUN_DIR, Said, Verb, VerbOption, mistake
from client_plugin.verbs.picture.model import TopModel
from client_plugin.verbs.picture.spans import in_ascii, plain
from client_plugin.verbs.presentation import tables
from client_plugin.verbs.reading.top_reading import read, read_cluster
from client_plugin.ways import choice, installed, terminal
from client_plugin.ways.faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

    from client_plugin.verbs.picture.spans import PictureLine
    from client_plugin.ways.choice import Way


def run(said: Said) -> int:
    if said.once:
        _print(choice.node_or_env(said.whom()), said.cluster)
        return 0
    _check_terminal(said)
    try:
        from client_plugin.verbs.screen import live
    except ImportError as missing:
        if (missing.name or "").partition(".")[0] not in ("rich", "textual"):
            raise
        remedy = "pip install textual" if said.inside else installed.command("faces")
        line = stated(
            f"top draws with the extra faces, and {missing.name} is not installed here",
            f"{remedy}; without it nodemgr top --once prints one picture",
        )
        raise Fault(line) from None
    from client_plugin.verbs.reading.top_feed import TopFeed

    way = choice.node_or_env(said.whom())
    model = _model(way, said.cluster)
    is_coloured = tables.colours_wanted()
    os.environ.pop("NO_COLOR", None)  # the lines have no colours; textual would mark each span
    app = live.TopApp(
        model,
        lambda order: feed.perform(order),
        lambda: feed.start(),
        is_coloured=is_coloured,
        is_ascii=not _has_unicode(),
    )
    feed = TopFeed(way, model, app.call_soon, is_cluster=said.cluster)
    return live.show(app)


def _check_terminal(said: Said) -> None:
    streams = {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
    for name, stream in streams.items():
        if stream is None or not stream.isatty():
            mistake(
                said.verb,
                stated(
                    f"top needs a terminal, and {name} is none",
                    "nodemgr top --once prints one picture",
                ),
            )
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        mistake(
            said.verb,
            stated(
                "top cannot draw on this terminal (TERM=dumb)",
                "nodemgr top --once prints one picture",
            ),
        )


def _model(way: Way, is_cluster: bool) -> TopModel:
    """With the first view. Raises Fault where no manager answers."""
    scope = "cluster" if is_cluster else os.uname().nodename
    model = TopModel(scope if way.env is None else f"env {way.env}")
    model.take((read_cluster if is_cluster else read)(way))
    return model


def _print(way: Way, is_cluster: bool) -> None:
    width, now_s = terminal.columns(), time.time()
    clock = tables.local_time("%H:%M:%S", now_s)
    lines: Sequence[PictureLine] = _model(way, is_cluster).whole(width, now_s, clock)
    if not _has_unicode():
        lines = [in_ascii(line) for line in lines]
    if tables.colours_wanted():
        try:
            from client_plugin.verbs.screen import printed
        except ImportError:
            pass
        else:
            printed.show(lines, width)
            return
    for line in lines:
        print(plain(line))


def _has_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


VERB = Verb(
    "top", VERBS["top"], run,
    (VerbOption("--once", help="Print one picture, also into a pipe; needs no extra."),
     VerbOption("--env", kind=kinds.ENV, help="Only this environment, asked as one of its users."),
     VerbOption("--cluster", help="All nodes of the cluster, as its head knows them."),
     RUN_DIR),
    text="Shows GPUs, tasks and the queue live, with keys to sort, filter, release, hold, withdraw"
    " and to see a job's output (? shows all keys). An admin sees the node, a user the"
    " environment's part of it.\n\n"
    "It needs the extra faces (pip install '.[faces]' in nodemgr's sources) and a terminal; nodemgr"
    " top --once prints one picture without them.",
)  # fmt: skip
