"""Manager, launcher, supervisor and job die at every point.

No attempt runs twice, none is lost, each ends once.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nodemgr.core.model.entities import Cause
from nodemgr.edge.executor import attempt_directory, local, orphans
from nodemgr.edge.executor import launcher as launcher_module
from nodemgr.edge.executor.attempt_directory import AttemptFiles, Facts
from nodemgr.edge.executor.launcher import PROGRAM
from nodemgr.edge.executor.local import NODE_WENT_DOWN, SUPERVISOR_KILLED
from nodemgr.edge.kernel.processes import ancestors, boot_id, start_ticks
from tests.supervisor.world import World, all_gone, end, own_audit_session, python
from tests.support.limits import WAIT_LIMIT_S
from tests.support.processes import children, is_running

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
J1 = ("j1", 1)


@pytest.fixture
def served(make_world: Callable[..., World]) -> World:
    """With the launcher as a service has it."""
    world = make_world(service=True)
    world.serve()
    world.until(lambda: world.factory.state()[0])
    return world


def marking(world: World) -> tuple[str, ...]:
    """A job that leaves a mark each time that it runs."""
    return "sh", "-c", f"echo ran >> {world.directory}/marks; exit 4"


def marks(world: World) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return (world.directory / "marks").read_text().split()
    return []


def written(world: World, *argv: str, boot: str | None = None) -> AttemptFiles:
    """An attempt with files, before its launcher was asked."""
    files = AttemptFiles(world.jobs_dir, *J1)
    files.write(world.order(*argv), 1_000, boot or boot_id())
    return files


# -- the manager --


def test_it_dies_before_anything_was_written(world: World) -> None:
    world.again()
    assert world.factory.adopt([J1]) == [J1]
    assert world.run(*marking(world), attempt=2).exit_code == 4
    assert marks(world) == ["ran"]


def test_it_dies_before_the_launcher_was_asked(world: World) -> None:
    written(world, *marking(world))
    world.again()
    assert world.factory.adopt([J1]) == [J1]
    world.factory.create(world.order(*marking(world)))  # this one never begins
    assert world.run(*marking(world), attempt=2).exit_code == 4
    assert marks(world) == ["ran"]


def test_it_dies_while_it_writes(world: World) -> None:
    half = world.jobs_dir / "j1" / ".1"
    half.mkdir(parents=True)
    (half / "order").write_bytes(b"nodemgr-order 1\0job=")
    assert world.factory.adopt([J1]) == [J1]
    assert world.run(*marking(world), attempt=2).exit_code == 4
    world.factory.delete("j1")
    assert not half.exists()


def test_it_dies_when_the_launcher_was_asked(served: World) -> None:
    """The launcher hears of it when the next manager has given it up."""
    (launcher,) = served._programs
    launcher.send_signal(signal.SIGSTOP)
    served.factory.create(served.order(*marking(served)))
    served.again()
    assert served.factory.adopt([J1]) == [J1]
    launcher.send_signal(signal.SIGCONT)
    served.until(lambda: served.factory.state()[0])
    assert served.run(*marking(served), attempt=2).exit_code == 4
    served.until(lambda: not children(launcher.pid))
    assert marks(served) == ["ran"]


def test_of_two_supervisors_one_begins(served: World, talk: Callable[[bytes], str]) -> None:
    """As many managers may have asked."""
    for number in range(20):
        AttemptFiles(served.jobs_dir, f"j{number}", 1).write(
            served.order(*marking(served), job=f"j{number}"), 1_000, boot_id()
        )
        for _ in range(3):
            assert talk(f"start j{number}/1".encode()).startswith(f"forked j{number}/1 ")
    served.until(lambda: not children(served._programs[0].pid))
    assert marks(served) == ["ran"] * 20
    assert len(list(served.jobs_dir.glob("*/1/claim.*"))) == 20


def test_who_watches_the_one_that_did_not_begin_turns_to_the_other(served: World) -> None:
    (launcher,) = served._programs
    launcher.send_signal(signal.SIGSTOP)
    served.factory.create(
        served.order(
            "sh", "-c", f"until test -e {served.directory}/go; do sleep 0.02; done; exit 4"
        )
    )
    other = subprocess.Popen([PROGRAM, "supervise", served.file("")])
    assert served.supervisor() == other.pid
    launcher.send_signal(signal.SIGCONT)
    served.begun()
    served.until(lambda: not children(launcher.pid))
    (served.directory / "go").touch()
    assert served.end().exit_code == 4
    assert other.wait() == 0


def test_it_dies_between_the_claim_and_the_beginning(world: World) -> None:
    """The supervisor is stood in for: it has claimed, and begins nothing."""
    files = written(world, *marking(world))
    supervisor = subprocess.Popen(["sleep", "600"])
    (files.directory / "free").rename(
        files.directory / f"claim.{supervisor.pid}.{start_ticks(supervisor.pid)}"
    )
    world.again()
    assert world.factory.adopt([J1]) == []
    world.factory.create(world.order(*marking(world)))
    world.until(lambda: world.factory.job_of([supervisor.pid]) == "j1")
    assert (world.heard.begun, world.heard.ends) == ({}, {})
    supervisor.kill()
    assert world.end().why == SUPERVISOR_KILLED
    supervisor.wait()
    assert (marks(world), world.heard.begun) == ([], {})


def test_it_dies_while_the_job_runs(world: World) -> None:
    world.factory.create(world.order("sleep", "600"))
    pid = world.begun()
    for _ in range(2):
        world.again()
        assert world.factory.adopt([J1]) == []
        assert world.begun() == pid
    world.set_limit(10**9)
    world.factory.withdraw("j1", 1, "enough")
    status = world.end()
    assert (status.signal, status.why) == (signal.SIGTERM, "enough")
    world.again()
    assert world.factory.adopt([J1]) == []
    assert world.end().signal == signal.SIGTERM  # once to each manager that asks


def test_it_dies_when_it_has_given_the_attempt_up(world: World) -> None:
    """Before the store heard of it."""
    assert written(world, *marking(world)).give_up()
    world.again()
    assert world.factory.adopt([J1]) == [J1]
    assert world.run(*marking(world), attempt=2).exit_code == 4
    assert marks(world) == ["ran"]


def test_a_job_withdrawn_before_it_began_never_begins(served: World) -> None:
    (launcher,) = served._programs
    launcher.send_signal(signal.SIGSTOP)
    served.factory.create(served.order(*marking(served)))
    served.factory.withdraw("j1", 1, "changed her mind")
    assert served.end().why == "changed her mind"
    launcher.send_signal(signal.SIGCONT)
    served.run("true", job="j2")
    served.until(lambda: not children(launcher.pid))
    assert marks(served) == []


def test_what_nobody_expects_goes_on_or_never_begins(world: World) -> None:
    world.factory.create(world.order("sleep", "600"))
    pid = world.begun()
    requeued_before_start = AttemptFiles(world.jobs_dir, "j2", 1)
    requeued_before_start.write(world.order("true", job="j2"), 1_000, boot_id())
    world.again()
    assert world.factory.adopt([]) == []
    assert world.factory.strays() == [J1]
    world.factory.create(world.order("false"))
    assert world.factory.strays() == []
    world.until(lambda: J1 in world.heard.begun)
    assert is_running(pid), "the same attempt is taken over, not begun again"
    world.again()
    assert world.factory.adopt([]) == []
    world.factory.withdraw(*J1, "enough")
    world.until(lambda: not is_running(pid))
    world.until(lambda: world.factory.strays() == [])
    assert not requeued_before_start.give_up()  # it is


# -- the node --


@pytest.mark.parametrize("recorded", [True, False])
def test_the_node_went_down_while_it_ran(world: World, recorded: bool) -> None:
    """Its supervisor's PID and start time may be another process's in this boot."""
    files = written(world, *marking(world), boot="another")
    stranger = subprocess.Popen(["sleep", "600"])
    (files.directory / "free").rename(
        files.directory / f"claim.{stranger.pid}.{start_ticks(stranger.pid)}"
    )
    lines = ["started 5 6 7 0", "ended 8 0 - 0"] if recorded else ["started 5 6 7 0", ""]
    (files.directory / "record").write_text(
        "".join(f"{line:<510}{'.' if line else ' '}\n" for line in lines)
    )
    assert world.factory.adopt([J1]) == []
    status = world.end()
    told = (status.exit_code, status.why, status.pid, status.cause)
    assert told == (
        (0, "", 6, Cause.OWN) if recorded else (None, NODE_WENT_DOWN, 6, Cause.NODE_DOWN)
    )
    assert is_running(stranger.pid)
    stranger.kill()
    stranger.wait()


def test_a_line_that_is_not_whole_says_nothing(world: World) -> None:
    files = written(world, "true")
    for torn in ("ended 8 0 - 0", "ended", "ended x 0 - 0" + " " * 497 + ".\n", "\0" * 512):
        (files.directory / "record").write_text(f"{'started 5 6 7 0':<510}.\n{torn}")
        assert files.record()[1] is None


# -- the supervisor --

STAYS = python(
    "import os, sys, time\n"
    "def leave(*, wipe, session):\n"
    "    if os.fork(): return\n"
    "    if session: os.setsid()\n"
    "    if os.fork(): os._exit(0)\n"
    "    if wipe: os.execve(sys.executable, [sys.executable, '-I', '-S', '-c', SLEEP], {})\n"
    "    os.execv(sys.executable, [sys.executable, '-I', '-S', '-c', SLEEP])\n"
    "SLEEP = 'import os, time; print(os.getpid(), flush=True); time.sleep(600)'\n"
    "leave(wipe=False, session=True)\n"
    "leave(wipe=True, session=False)\n"
    "if sys.argv[1:]: leave(wipe=True, session=True)\n"
    "time.sleep(600)\n"
)
"""Its children left it: with its environment, in its session, with `hidden` without either."""


def test_it_is_killed_and_nothing_of_the_job_is_left(world: World) -> None:
    world.factory.create(world.order(*STAYS, "hidden"))
    main, left = world.begun(), [int(pid) for pid in world.said(3)]
    end(world.supervisor())
    status = world.end()
    assert (status.exit_code, status.signal, status.why, status.cause) == (
        None,
        None,
        SUPERVISOR_KILLED,
        Cause.SUPERVISOR_LOST,
    )
    assert all_gone([main, *left])
    assert world.run("true", job="j2").exit_code == 0


def test_it_is_killed_when_its_launcher_is_gone_too(served: World) -> None:
    """Their new parent does not end them: they are found by their marks of the job."""
    served.factory.create(served.order(*STAYS))
    main, left = served.begun(), [int(pid) for pid in served.said(2)]
    end(served._programs[0].pid)
    end(served.supervisor())
    assert served.end().why == SUPERVISOR_KILLED
    assert all_gone([main, *left])


def test_who_hides_is_killed_when_supervisor_and_launcher_are(served: World) -> None:
    """In a session of its own, without an environment, its parents dead.

    Only the kernel's audit session names its job.
    """
    if not own_audit_session():
        pytest.skip("this kernel or this login gives a job no audit session of its own")
    hides = "echo $$; exec sleep 600"
    inner = f'env -i setsid sh -c "{hides}"'
    script = f"env -i setsid sh -c '{inner} & exit' & wait; exec sleep 600".replace("$$", "\\$\\$")
    served.factory.create(served.order("sh", "-c", script))
    main, hidden = served.begun(), int(served.said()[0])
    assert Path(f"/proc/{hidden}/environ").read_bytes().count(b"NODEMGR") == 0
    end(served._programs[0].pid)
    end(served.supervisor())
    assert served.end().why == SUPERVISOR_KILLED
    assert all_gone([main, hidden])


def test_it_is_killed_while_no_manager_looks(served: World) -> None:
    served.factory.create(served.order(*STAYS))
    main, left = served.begun(), [int(pid) for pid in served.said(2)]
    supervisor = served.supervisor()
    served.die()
    end(served._programs[0].pid)
    end(supervisor)
    served.begin()
    assert served.factory.adopt([J1]) == []
    assert served.end().why == SUPERVISOR_KILLED
    assert all_gone([main, *left])


@root_only
def test_nobody_can_name_himself_into_anothers_job(served: World) -> None:
    stranger = subprocess.Popen(["sleep", "600"], env={"NODEMGR_JOB": "j1:1"}, user="nobody")
    served.factory.create(served.order("sleep", "600"))
    main = served.begun()
    end(served._programs[0].pid)
    end(served.supervisor())
    served.end()
    assert (is_running(main), is_running(stranger.pid)) == (False, True)
    stranger.kill()
    stranger.wait()


def test_another_managers_job_of_the_same_name_and_user_goes_on(served: World) -> None:
    """By the audit session, and where a job has none by the directory of its environment."""
    other = subprocess.Popen(
        ["sleep", "600"], env={"NODEMGR_JOB": "j1:1", "NODEMGR_ENV_DIR": "/run/other/envs/alice"}
    )
    ours = ("PATH=/usr/bin:/bin", "NODEMGR_JOB=j1:1", "NODEMGR_ENV_DIR=/run/ours/envs/alice")
    served.factory.create(served.order("sleep", "600", environ=ours))
    main = served.begun()
    end(served._programs[0].pid)
    end(served.supervisor())
    served.end()
    assert (is_running(main), is_running(other.pid)) == (False, True)
    other.kill()
    other.wait()


def test_what_says_whose_it_is_is_found_where_a_job_has_no_audit_session() -> None:
    words = {"NODEMGR_JOB": "j1:1", "NODEMGR_ENV_DIR": "/run/ours/envs/alice"}
    ours = subprocess.Popen(["sleep", "600"], env=words, start_new_session=True)
    others = [
        subprocess.Popen(["sleep", "600"], env={**words, **said}, start_new_session=True)
        for said in ({"NODEMGR_JOB": "j1:2"}, {"NODEMGR_ENV_DIR": "/run/other/envs/alice"})
    ]
    try:
        facts = Facts(os.geteuid(), os.getegid(), "", "/run/ours/envs/alice")
        found = {int(key.split(":")[1]) for key in orphans.find("j1:1", facts, None)}
        assert found == {ours.pid}
        assert orphans.find("j1:1", replace(facts, env_dir=""), None) == []
        inside = replace(facts, place="alice/0/box")
        assert orphans.find("j1:1", inside, None) == [], "a container's job is not outside of it"
    finally:
        for process in (ours, *others):
            process.kill()
            process.wait()


TOLD_TO_END = "its supervisor was told to end: the node goes down, or a user ended it"


def test_it_is_told_to_end_while_the_node_stays_up(world: World) -> None:
    world.factory.create(world.order("sleep", "600"))
    world.begun()
    supervisor = world.supervisor()
    os.kill(supervisor, signal.SIGSTOP)  # by the first of them it ends, soon
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        os.kill(supervisor, number)
    status = world.end()
    assert status.signal == signal.SIGTERM
    assert (status.why, status.cause) == (TOLD_TO_END, Cause.SUPERVISOR_LOST)


SAVES = (
    "import os, pathlib, signal, sys, time\n"
    "os.chdir(sys.argv[1])\n"
    "def asked(*_):\n"
    "    pathlib.Path('saved').write_text('saved')\n"
    "    os._exit(0)\n"
    "signal.signal(signal.SIGTERM, asked)\n"
    "pathlib.Path('ready').touch()\n"
    "while True: time.sleep(600)\n"
)
"""(dash loses a trapped signal that comes while it forks.)"""


def test_all_are_ended_before_the_node_goes_down(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each saves its state; one has ended before, one has not begun. Then the node is up again."""
    assert world.run("true", job="j1").exit_code == 0
    waiting = AttemptFiles(world.jobs_dir, "j4", 1)
    waiting.write(world.order("true", job="j4"), 1_000, boot_id())
    for job in ("j2", "j3"):
        (world.directory / job).mkdir()
        world.factory.create(world.order(*python(SAVES), str(world.directory / job), job=job))
        world.begun(job)
        world.until(lambda job=job: (world.directory / job / "ready").exists())
    world.again()
    done = subprocess.run([PROGRAM, "end-all", world.jobs_dir], timeout=WAIT_LIMIT_S, check=False)
    assert done.returncode == 0
    assert [(world.directory / job / "saved").exists() for job in ("j2", "j3")] == [True, True]
    assert waiting.claim() is None
    monkeypatch.setattr(local, "boot_id", lambda: "the next one")
    world.again()
    world.factory.adopt([("j2", 1), ("j3", 1)])
    for job in ("j2", "j3"):
        status = world.end(job)
        assert (status.exit_code, status.why) == (0, TOLD_TO_END)
        assert status.cause is Cause.NODE_DOWN


def test_the_end_of_the_node_waits_whatever_the_words_of_a_job_are(world: World) -> None:
    """Its time to end stands in the order, and so do the words of its command."""
    gate, word = world.directory / "j2" / "gate", "signal_ms=9223372036854740000"
    gate.parent.mkdir()
    os.mkfifo(gate)
    slow = SAVES.replace(
        "    pathlib", "    open('asked', 'w').close(); open('gate').read()\n    pathlib"
    )
    world.factory.create(world.order(*python(slow), str(gate.parent), word, job="j2"))
    world.begun("j2")
    world.until(lambda: (gate.parent / "ready").exists())
    program = subprocess.Popen([PROGRAM, "end-all", world.jobs_dir])
    world.until(lambda: (gate.parent / "asked").exists())
    stat = Path(f"/proc/{program.pid}/stat")
    world.until(lambda: program.poll() is not None or stat.read_text().split()[2] == "S")
    waited = program.poll() is None
    gate.write_text("")
    assert program.wait(WAIT_LIMIT_S) == 0
    assert waited
    assert (gate.parent / "saved").exists()
    world.end("j2")


def test_without_jobs_there_is_none_to_end(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "none"):
        assert subprocess.run([PROGRAM, "end-all", directory], check=False).returncode == 0


def test_the_job_is_killed(world: World) -> None:
    world.factory.create(world.order("sleep", "600"))
    os.kill(world.begun(), signal.SIGKILL)
    status = world.end()
    assert (status.signal, status.why) == (signal.SIGKILL, "")


# -- the launcher --


def test_it_dies_and_a_spare_one_takes_over(world: World) -> None:
    for number in (1, 2, 3):
        world.factory.create(world.order("sleep", "600", job=f"j{number}"))
        world.begun(f"j{number}")
        end(ancestors(world.supervisor(f"j{number}"))[0])
    world.until(lambda: not world.factory.state()[0])
    world.factory.create(world.order(*marking(world), job="j4"))
    world.until(
        lambda: (
            "restart it (no task and no job is lost)" in world.heard.given_back.get(("j4", 1), "")
        )
    )
    assert "restart it (no task and no job is lost)" in world.heard.hosts[""]
    world.factory.withdraw("j1", 1, "enough")
    assert world.end("j1").signal == signal.SIGTERM  # they go on, and end, without it
    world.again()
    assert world.factory.adopt([("j2", 1), ("j3", 1), ("j4", 1)]) == [("j4", 1)]
    assert world.factory.state() == (
        True,
        "started by the manager's own launcher; --cpus and --host-memory reserve, and limit"
        " nothing: only jobs of the service nodemgr-jobs have cgroups of their own",
    )
    assert world.run("true", job="j5").exit_code == 0
    for job in ("j2", "j3"):
        world.factory.withdraw(job, 1, "enough")
        assert world.end(job).why == "enough"


def test_ours_ends_with_us_and_leaves_jobs_alone(world: World) -> None:
    forgotten = os.open(world.directory, os.O_RDONLY)
    os.set_inheritable(forgotten, True)
    world.again()
    os.close(forgotten)
    world.factory.create(world.order("sleep", "600"))
    pid = world.begun()
    launcher = ancestors(world.supervisor())[0]
    assert str(world.directory) not in {
        os.readlink(path) for path in Path(f"/proc/{launcher}/fd").iterdir()
    }
    world.die()
    assert is_running(launcher)  # it looks after its supervisor
    end(world.supervisor())
    world.until(lambda: all_gone([launcher, pid]))
    world.begin()


def test_the_services_comes_back(served: World) -> None:
    served.factory.create(served.order("sleep", "600"))
    served.begun()
    end(served._programs[0].pid)
    served.until(lambda: not served.factory.state()[0])
    ok, words = served.factory.state()
    assert (
        ok,
        words.startswith(
            f"no job can be started: the service nodemgr-jobs does not answer ({served.socket}: "
        ),
    ) == (False, True)
    served.until(lambda: served.heard.hosts[""] == served.factory.state()[1])
    served.factory.create(served.order(*marking(served), job="j2"))
    served.until(lambda: ("j2", 1) in served.heard.given_back)
    served.serve()
    served.until(lambda: served.heard.hosts[""] == "")
    assert served.run(*marking(served), job="j2", attempt=2).exit_code == 4
    assert marks(served) == ["ran"]
    served.factory.withdraw("j1", 1, "enough")
    assert served.end().why == "enough"
    assert served.factory.state() == (
        True,
        f"started by the service nodemgr-jobs ({served.socket}); --cpus and --host-memory"
        " reserve, and limit nothing: systemd delegates no cgroup to them (journalctl -u"
        " nodemgr-jobs)",
    )


def test_the_services_is_waited_for(make_world: Callable[..., World]) -> None:
    """A job loses no try while the service has not been started."""
    world = make_world(service=True)
    words = (
        f"no job can be started: the service nodemgr-jobs does not answer ({world.socket}: No such"
        " file or directory)"
    )
    world.until(lambda: world.heard.hosts.get("") == words)
    assert world.factory.state() == (False, words)
    world.factory.create(world.order(*marking(world)))
    world.until(lambda: world.heard.given_back == {J1: words})
    world.serve()
    world.until(lambda: world.heard.hosts[""] == "")
    world.factory.create(world.order(*marking(world)))  # it was given back for good
    assert world.run(*marking(world), attempt=2).exit_code == 4
    assert (marks(world), world.heard.ends.keys()) == (["ran"], {("j1", 2)})


def test_who_waits_for_the_services_sleeps_until_it_is_there(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be away for hours."""
    monkeypatch.setattr(launcher_module, "MAX_RETRY_S", 1.6)
    world = make_world(service=True)
    for _ in range(2):
        world.until(lambda: world.launcher._retry is None and not world.factory.state()[0])
        service = world.serve()
        world.until(lambda: world.factory.state()[0])
        assert world.run("true", attempt=service.pid).exit_code == 0
        end(service.pid)


def test_without_a_word_of_its_coming_it_is_looked_for_all_the_same(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has no inotify left to give."""
    monkeypatch.setattr(launcher_module.FileEvents, "are_told", False)
    monkeypatch.setattr(launcher_module.Launcher, "_check_again", lambda launcher: None)
    monkeypatch.setattr(launcher_module, "MAX_RETRY_S", 0.1)
    world = make_world(service=True)
    world.until(lambda: world.launcher._pause_s == 0.1)
    world.serve()
    world.until(lambda: world.factory.state()[0])


def test_it_is_gone_before_it_began_what_it_was_asked_for(served: World) -> None:
    """It is unknown whether it has heard: the attempt is taken away from any that might have."""
    (launcher,) = served._programs
    launcher.send_signal(signal.SIGSTOP)
    served.factory.create(served.order(*marking(served)))
    served.factory.create(served.order(*marking(served), job="j2"))
    served.factory.withdraw("j2", 1, "changed her mind")
    end(launcher.pid)
    served.until(lambda: J1 in served.heard.given_back)
    assert any("has ended" in told for told in served.heard.told_of_hosts)
    assert (served.end("j2").why, served.heard.given_back.keys()) == ("changed her mind", {J1})
    assert not served.file("").exists()
    supervisor = subprocess.Popen(
        [PROGRAM, "supervise", served.file("")], stderr=subprocess.DEVNULL
    )
    assert supervisor.wait() != 0
    served.serve()
    served.until(lambda: served.heard.hosts[""] == "")
    assert served.run("true", job="j3").exit_code == 0
    assert marks(served) == []


def test_what_it_has_begun_before_it_was_gone_goes_on(served: World) -> None:
    """Its supervisor is found by its claim."""
    (launcher,) = served._programs
    launcher.send_signal(signal.SIGSTOP)
    served.factory.create(
        served.order(
            "sh", "-c", f"until test -e {served.directory}/go; do sleep 0.02; done; exit 4"
        )
    )
    supervisor = subprocess.Popen([PROGRAM, "supervise", served.file("")])
    assert served.supervisor() == supervisor.pid
    end(launcher.pid)
    served.begun()
    (served.directory / "go").touch()
    assert served.end().exit_code == 4
    assert (supervisor.wait(), served.heard.given_back) == (0, {})


def test_the_services_has_another_directory(make_world: Callable[..., World]) -> None:
    world = make_world(service=True)
    other = world.serve(Path("/somewhere/else"))
    world.until(
        lambda: (
            f"starts jobs of /somewhere/else, this manager's are in {world.jobs_dir}"
            in world.heard.hosts.get("", "")
        )
    )
    assert (world.factory.state()[0], world.heard.ends) == (False, {})
    end(other.pid)
    world.serve()
    world.until(lambda: world.heard.hosts[""] == "")
    assert world.run(*marking(world)).exit_code == 4


def test_its_children_are_collected(served: World) -> None:
    for number in range(20):
        served.run("true", job=f"j{number}")
    served.until(lambda: not children(served._programs[0].pid))


# -- what is said to the launcher --


@pytest.fixture
def talk(served: World) -> Iterator[Callable[[bytes], str]]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(WAIT_LIMIT_S)
    sock.connect(str(served.socket))

    def say(packet: bytes) -> str:
        sock.send(packet)
        while (answer := sock.recv(1_024).decode()).startswith("running "):  # a supervisor's word
            pass
        return answer

    yield say
    sock.close()


@pytest.mark.parametrize(
    "packet",
    [
        b"start", b"start ", b"start j1", b"start j1/", b"start /1", b"start ../../etc/1",
        b"start j1/../1", b"start j1/.1",
        b"start j1/1/1",
        b"start j1/1\n", b"bury ..", b"\0", b"start j1/1\0/../..", b"x" * 4_000,
        b"start " + b"j" * 95 + b"/1", bytes(range(256)),
    ],
)  # fmt: skip
def test_what_is_no_word_is_refused(
    served: World, talk: Callable[[bytes], str], packet: bytes
) -> None:
    if packet == b"start j1/1\0/../..":  # read as what stands before the NUL
        assert talk(packet).startswith("failed j1/1 ")
    else:
        assert talk(packet) == "failed - this is not a known request"
    assert talk(b"where") == "scope -"


@pytest.mark.parametrize(
    "wrong", ["missing", "a link", "writable", pytest.param("another's", marks=root_only)]
)
def test_a_directory_that_others_could_fill_is_refused(
    served: World, talk: Callable[[bytes], str], wrong: str
) -> None:
    if wrong != "missing":
        files = written(served, *marking(served))
        if wrong == "a link":
            files.directory.rename(files.directory.with_name("2"))
            files.directory.symlink_to("2")
        elif wrong == "writable":
            files.directory.chmod(0o770)
        else:
            os.chown(files.directory.parent, 65534, 65534)
    answer = talk(b"start j1/1")
    assert answer.startswith(f"failed j1/1 {served.jobs_dir}/j1/1: ")
    assert not list(served.jobs_dir.glob("j1/*/claim.*"))
    assert marks(served) == []


@root_only
def test_only_its_own_user_is_heard(served: World) -> None:
    assert served.socket is not None
    assert served.socket.stat().st_mode & 0o777 == 0o600
    served.socket.chmod(0o666)
    code = (
        "import socket, sys\n"
        "sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "sock.connect(sys.argv[1])\n"
        "try:\n"
        "    sock.send(b'where')\n"
        "    print('heard', sock.recv(100))\n"
        "except OSError as error:\n"
        "    print('refused', error)\n"
    )
    copy = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    done = subprocess.run(
        [copy, "-I", "-S", "-c", code, str(served.socket)],
        user="nobody",
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout:
        pytest.skip(f"nobody cannot run {copy}: {done.stderr.strip()}")
    assert done.stdout.startswith("refused") or done.stdout == "heard b''\n"
    assert served.run("true").exit_code == 0


def test_a_manager_without_rights_runs_its_own_users_jobs_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local.os, "geteuid", lambda: 1_000)
    status = world.run("true", uid=1_001)
    assert (status.why, status.cause) == (
        (
            "this manager belongs to uid 1000 and starts its own user's jobs alone: ask an admin "
            "for the node's own"
            ), Cause.CANNOT_RUN,
    )  # fmt: skip
    assert not world.file("").exists()


# -- the disk --


def without_disk(world: World) -> int:
    """A waiting job with a supervisor that can write to no file any more.

    (A limit of its own; to the manager it is as EIO is.)
    """
    go = world.directory / "go"
    world.factory.create(
        world.order(
            "sh",
            "-c",
            f"while ! test -e {go}; do sleep 0.01; done; echo ran >> {world.directory}/marks;"
            " exit 4",
        )
    )
    world.begun()
    supervisor = world.supervisor()
    resource.prlimit(supervisor, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    return supervisor


def test_an_end_that_its_record_does_not_take_is_told_by_its_claim(world: World) -> None:
    supervisor = without_disk(world)
    (world.directory / "go").touch()
    status = world.end()
    assert (status.exit_code, status.signal, status.why, status.cause, marks(world)) == (
        4,
        None,
        "",
        Cause.OWN,
        ["ran"],
    )
    assert not world.file("record").read_text()[512:].strip()
    assert not is_running(supervisor)
    world.again()
    assert world.factory.adopt([J1]) == []
    assert world.end() == status, "to the next manager, too"


def ended_unseen(world: World) -> int:
    """Its end cannot be recorded: its supervisor does not find the claim under its name.

    The manager reads the end all the same.
    """
    supervisor = without_disk(world)
    (claim,) = world.file("").glob("claim.*")
    _, pid, ticks = claim.name.split(".")
    claim.rename(claim.with_name(f"claim.0{pid}.{ticks}"))
    (world.directory / "go").touch()
    world.until(lambda: marks(world) == ["ran"] and not children(supervisor))
    return supervisor


def test_an_end_that_nothing_takes_is_waited_for(world: World) -> None:
    """Its supervisor has it, and neither this manager nor the next takes the attempt for lost."""
    supervisor = ended_unseen(world)
    world.again()
    assert world.factory.adopt([J1]) == []
    world.begun()
    assert J1 not in world.heard.ends
    resource.prlimit(
        supervisor, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    )
    assert (world.end().exit_code, marks(world)) == (4, ["ran"])


def test_who_is_withdrawn_need_not_have_its_end_written(world: World) -> None:
    supervisor = ended_unseen(world)
    world.factory.withdraw("j1", 1, "alice withdrew it")
    assert world.end().exit_code is None
    assert not is_running(supervisor)


def test_a_log_is_found_without_a_look_at_other_jobs(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    for job in ("j1", "j2"):
        assert world.run(*marking(world), job=job).exit_code == 4
    looked: list[Path] = []
    entries = attempt_directory._entries
    monkeypatch.setattr(
        attempt_directory,
        "_entries",
        lambda directory: looked.append(directory) or entries(directory),
    )
    os.close(world.factory.logs("j1"))
    assert looked == [world.jobs_dir / "j1"]
