"""Fixtures for every test: a manager on a simulated node, and clients of its environments."""

from __future__ import annotations

import gc
import os
import re
import signal
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.client_c.compiled import OBJECTS
from tests.session import Leftovers, processors, some_files
from tests.support.examples import TIMES
from tests.support.manager import Manager
from tests.support.udp_clients import FakeClient

TESTS = Path(__file__).parent
ROOT = TESTS.parent
SHARED = re.compile(
    r'scope="(module|session)"|import built_libraries|xdist_group|^@cache$', re.MULTILINE
)
CHOSEN = {
    "": "not slow and not long",
    "slow": "slow and not long",
    "frameworks": "frameworks and not slow and not long",
    "slow or frameworks": "(slow or frameworks) and not long",
}
"""By -m as it is given, for a run of folders."""
MARKED = {
    "slow and not long": ("pytest.mark.slow",),
    "long": ("pytest.mark.long",),
    "frameworks and not slow and not long": ("pytest.mark.frameworks",),
    "(slow or frameworks) and not long": ("pytest.mark.slow", "pytest.mark.frameworks"),
}
"""By -m: what stands in the files that have such tests."""
WITHOUT_FRAMEWORKS = (
    "Left out: the tests of PyTorch, TensorFlow, Numba, notebooks, NVIDIA's headers. To run them:"
    " pip install -e '.[test,frameworks]' && pytest -m frameworks"
)
WHOLE_FILE = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.frameworks\b", re.MULTILINE)
"""In a file whose tests all need them: it is not read without them, since it may import them."""
LEFTOVERS = pytest.StashKey[Leftovers]()
LAST_END_S = 60
MOST_WORKERS = 8
"""Each may hold a PyTorch and a TensorFlow in memory."""
ONE_AT_A_TIME = {"containers", "service"}  # /etc/cdi, podman's state, systemd's cgroups
ONE_PROCESS = {
    "training": "frameworks",  # it imports PyTorch and TensorFlow: once, not in each worker
    "test_house.py": "sources",  # they read the syntax trees of all sources
    "test_messages.py": "sources",
    "test_words.py": "sources",
}
"""Folder or file -> the group whose tests one worker runs."""


settings.register_profile(
    "busy",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=TIMES == 1,  # a deep run looks for what nobody has seen
)
settings.load_profile("busy")  # no test fails because the machine has other work


def pytest_configure(config: pytest.Config) -> None:
    """Prepare a run: shared object files, no slow tests, and the default handling of signals.

    `-m slow`, `-m long` and a run of single files include slow tests. A shell ignores Ctrl-C in its
    background jobs, and children inherit that.
    """
    if not hasattr(config, "workerinput"):
        config.stash[LEFTOVERS] = Leftovers()
        objects = tempfile.TemporaryDirectory(prefix="nmo")
        os.chmod(objects.name, 0o755)  # programs of other users are compiled there, too
        os.environ[OBJECTS] = objects.name
        config.add_cleanup(objects.cleanup)
        own_temporary_files(Path(objects.name))
    if names_folders(config):
        config.option.markexpr = CHOSEN.get(config.option.markexpr, config.option.markexpr)
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    os.environ.setdefault("NODEMGR_DISK_RESERVE_BYTES", str(2**20))  # thousands of stores are made


def own_temporary_files(directory: Path) -> None:
    """Make what a killed program or a framework leaves go with the run.

    pytest's own files stay outside: they are kept for three runs, and their paths are long.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory / "t")
    Path(tempfile.tempdir).mkdir()
    Path(tempfile.tempdir).chmod(0o1777)


@cache
def lacks_frameworks() -> bool:
    """Whether a package of the extra `frameworks` is not installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in project["optional-dependencies"]["frameworks"]:
        try:
            metadata.distribution(re.split(r"[^\w.-]", requirement)[0])
        except metadata.PackageNotFoundError:
            return True
    return False


def left(config: pytest.Config) -> list[str]:
    """The temporary files that this run left, or one beside it."""
    leftovers = config.stash.get(LEFTOVERS, None)
    return [] if leftovers is None else leftovers.found(but=os.environ[OBJECTS])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that leaves files in a /tmp of its own fails.

    A process that ends a little after its test has a while to take its files along.
    """
    leftovers = session.config.stash.get(LEFTOVERS, None)
    if leftovers is None or not leftovers.are_ours:
        return
    deadline = time.monotonic() + LAST_END_S
    while left(session.config) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left(session.config):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if found := left(terminalreporter.config):
        terminalreporter.write_line(f"left by this run or one beside it: {', '.join(found)}")
        for path in found[:5]:
            terminalreporter.write_line(f"  {path}: {', '.join(some_files(Path(path)))}")
    if lacks_frameworks():
        terminalreporter.write_line(WITHOUT_FRAMEWORKS)


def names_folders(config: pytest.Config) -> bool:
    """Whether this run is of folders (all tests are one), and not of single files alone."""
    return any(Path(argument.split("::")[0]).is_dir() for argument in config.args)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m slow` and others read only the files that have such a test; each worker reads them.

    The mark therefore stands in the file of its test (tests/test_house.py).
    """
    marked = MARKED.get(config.option.markexpr)
    if not collection_path.match("test_*.py") or (marked is None and not lacks_frameworks()):
        return None
    text = collection_path.read_text()
    unwanted = marked is not None and not any(mark in text for mark in marked)
    return True if unwanted or (lacks_frameworks() and WHOLE_FILE.search(text)) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without the extra `frameworks` its tests are left out; the summary has the line."""
    if lacks_frameworks():
        left_out = [item for item in items if item.get_closest_marker("frameworks")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("frameworks")]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """No garbage is collected while 7 000 tests are: it took a quarter of each worker's time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are processors: a test waits half of its time for other processes.

    None where only files are named: their output is seen live.
    """
    return min(processors() + 1, MOST_WORKERS) if names_folders(config) else 0


class ByGroup(LoadScopeScheduling):
    """Gives all tests of a group to one worker, one after another.

    By path: `--dist loadgroup` of pytest-xdist 3.8 has no effect under pytest 9, which does not
    read the changed node IDs.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if Path(file).parts[1] in ONE_AT_A_TIME:
            return "machine"
        if group := ONE_PROCESS.get(Path(file).parts[1]):
            return group
        return file if shares_fixtures(ROOT / file) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    return ByGroup(config, log)


@cache
def shares_fixtures(file: Path) -> bool:
    """Whether something is built, read or started once for the tests of this file."""
    above = [file.parent, *file.parent.parents]
    conftests = [folder / "conftest.py" for folder in above if TESTS in folder.parents]
    return any(SHARED.search(path.read_text()) for path in (file, *conftests) if path.exists())


@pytest.fixture(autouse=True)
def usual_umask() -> None:
    """A manager within the test's process changes the umask of all of its threads for good."""
    os.umask(0o022)


@pytest.fixture
def make_manager() -> Iterator[Callable[..., Manager]]:
    """Starts managers: make_manager(simulate="4x80GiB", options=[…], environment={…}, …)."""
    managers: list[Manager] = []

    def make(*, start: bool = True, **arguments: Any) -> Manager:
        managers.append(Manager(**arguments))
        return managers[-1].start() if start else managers[-1]

    yield make
    for manager in managers:
        manager.close()


@pytest.fixture
def manager(make_manager: Callable[..., Manager]) -> Manager:
    """A manager on four simulated GPUs of 80 GiB."""
    return make_manager()


@pytest.fixture
def make_client() -> Iterator[Callable[..., FakeClient]]:
    """Starts hand-driven client processes: make_client(manager.env_dir("alice"))."""
    clients: list[FakeClient] = []

    def make(env_dir: Path, **options: Any) -> FakeClient:
        clients.append(FakeClient(env_dir, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
