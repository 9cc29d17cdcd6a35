"""Makes the pictures of README.md and docs/ from real commands on a simulated node.

    pip install -e '.[faces,browser]'
    python docs/pictures/make.py [--into DIRECTORY] [NAME ...]

Without a NAME it makes all of PICTURES. A new picture is a function here and a row of that table;
a page refers to it by its file, with an alternative text. A picture is at most 200 kB, and names no
other host: `tests/cli/test_docs_pictures.py` compares the table, the files and the pages.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import past_day
from browser import NoBrowser, screenshot
from scene import Scene, SceneError
from terminal import NotShown, Shell, svg

HERE = Path(__file__).resolve().parent
MOST_BYTES = 200_000
COLUMNS = 104


@contextmanager
def shell(scene: Scene, env: str | None = None, columns: int = COLUMNS) -> Iterator[Shell]:
    """bash as a user types into it, in an environment or as the administrator."""
    command = ["bash", "--norc", "--noprofile", "--noediting"]
    if env is not None:
        command = scene.nodemgr("run", "--env", env, "--", *command)
    opened = Shell(command, columns, scene.variables(), scene.home)
    try:
        yield opened
    finally:
        opened.close()


def wait(name: str) -> str:
    """The line of a wait, and the grant that ends it."""
    with Scene() as scene:
        scene.start("bob", "finetune.py", 12)
        scene.start("carol", "pretrain.py", 64, 2)
        scene.start("dana", "eval.py", 8)
        with shell(scene, "alice") as terminal:
            terminal.begin("python train.py --gib 24 --epochs 3")
            waiting = terminal.wait_for(r"\(0:00:0[4-9]\)$")
            scene.end("dana", "eval.py")
            granted = terminal.wait_for(r"loss 0.8\d+\n").removesuffix("$ ").rstrip("\n")
    remark = "# eval.py ends; the same line, a moment later:"
    return svg(name, "alice: python train.py", COLUMNS, waiting, remark, granted.partition("\n")[2])


def status(name: str) -> str:
    with Scene() as scene:
        scene.start_all()
        with shell(scene) as terminal:
            return svg(name, "nodemgr status", COLUMNS, terminal.run("nodemgr status"))


def top(name: str) -> str:
    with Scene() as scene:
        scene.start_all()
        with shell(scene) as terminal:
            return svg(name, "nodemgr top", COLUMNS, terminal.run("nodemgr top --once"))


def submit_waiting(scene: Scene) -> None:
    """An array and a job, which wait behind the programs that hold all GPUs."""
    scene.submit("alice", "python sweep.py", "--gpus", "2", "--time", "4h", "--array", "0-9")
    scene.submit("carol", "python eval.py", "--gpus", "2", "--time", "1h")


def queue(name: str) -> str:
    columns = 132
    with Scene() as scene:
        scene.start_all()
        submit_waiting(scene)
        with shell(scene, columns=columns) as terminal:
            return svg(name, "nodemgr queue", columns, terminal.run("nodemgr queue"))


def memory(name: str) -> str:
    """A line about memory beyond the quota."""
    with Scene() as scene:
        scene.start("bob", "finetune.py", 12)
        with shell(scene, "alice") as terminal:
            shown = terminal.run("python train.py --gib 60")
    return svg(name, "alice: python train.py", COLUMNS, shown)


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def page(
    _name: str, width: int = 1180, height: int = 760, dark: bool = False, route: str = "#/"
) -> bytes:
    """The web page, as an administrator sees it on a node that has run for a day."""
    port = free_port()
    with Scene("--web", f"127.0.0.1:{port}") as scene:
        scene.start_all()
        submit_waiting(scene)
        uuids = [row["uuid"] for row in scene.call("status")["gpus"]]
        past_day.write(scene.directory / "state" / "state.db", uuids)
        token = scene.call("web_token", admin=True, for_ms=3_600_000)["token"]
        url = f"http://127.0.0.1:{port}/#token={token}"
        return screenshot(url, "finetune.py", width, height, dark, route)


def phone(name: str) -> bytes:
    return page(name, 390, 844, dark=True)


def timeline(name: str) -> bytes:
    return page(name, 1180, 640, dark=True, route="#/timeline")


class Picture(NamedTuple):
    make: Callable[[str], str | bytes]
    kind: str = "svg"


PICTURES = {
    "wait": Picture(wait),
    "status": Picture(status),
    "top": Picture(top),
    "queue": Picture(queue),
    "memory": Picture(memory),
    "page": Picture(page, "png"),
    "phone": Picture(phone, "png"),
    "timeline": Picture(timeline, "png"),
}


def file_name(name: str) -> str:
    return f"{name}.{PICTURES[name].kind}"


def write(name: str, directory: Path) -> None:
    """Makes one picture. Raises SceneError where it is too large."""
    made = PICTURES[name].make(name)
    content = made.encode() if isinstance(made, str) else made
    if len(content) > MOST_BYTES:
        raise SceneError(f"{file_name(name)} has {len(content):,} bytes, at most {MOST_BYTES:,}")
    (directory / file_name(name)).write_bytes(content)
    print(f"{file_name(name)}: {len(content):,} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", metavar="NAME", nargs="*", choices=[[], *PICTURES])
    parser.add_argument("--into", type=Path, default=HERE, metavar="DIRECTORY")
    given = parser.parse_args()
    try:
        for name in given.names or PICTURES:
            write(name, given.into)
    except (SceneError, NotShown, NoBrowser) as error:
        print(f"make.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
