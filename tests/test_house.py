"""The house rules that a machine can hold: imports, purity, sizes, language."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from nodemgr.core.model.event_names import EVENT_NAMES
from tests.each import each
from tests.sources import nodes, parsed

ROOT = Path(__file__).resolve().parent.parent
LAYERS = {"nodemgr.core": 0, "nodemgr.edge": 1, "nodemgr.head": 2, "nodemgr.cli": 3}
IMPURE = {"asyncio", "ctypes", "datetime", "io", "os", "pathlib", "random", "secrets", "select",
    "signal", "socket",
          "sqlite3", "subprocess", "tempfile", "threading", "time", "uuid"}  # fmt: skip


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(path: Path, *, at_load: bool = False, untyped: bool = False) -> tuple[str, ...]:
    """Absolute names that a file imports; `at_load`: those outside functions and TYPE_CHECKING.

    `untyped`: those outside TYPE_CHECKING.
    """
    return tuple(_imports(path, at_load, at_load or untyped))


def _imports(path: Path, at_load: bool, untyped: bool) -> Iterator[str]:
    tree = parsed(path)
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if at_load and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if untyped and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or not str(path.relative_to(ROOT)).startswith("nodemgr"), (
                f"{path}: relative import"
            )
            parts = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            source = ".".join((*parts, node.module or ""))
            yield from (f"{source}.{alias.name}" for alias in node.names if node.module)
        pending.extend(ast.iter_child_nodes(node))


def layer(name: str) -> int | None:
    return next(
        (
            rank
            for prefix, rank in LAYERS.items()
            if name == prefix or name.startswith(prefix + ".")
        ),
        None,
    )


@each([p for p in sources("nodemgr") if layer(module_name(p)) is not None], module_name)
def test_imports_point_from_cli_to_edge_to_core(path: Path) -> None:
    own = layer(module_name(path))
    assert own is not None
    above = [name for name in imports(path) if (layer(name) or 0) > own]
    assert not above, f"{module_name(path)} imports upwards: {above}"


FORM = "client_plugin.messages.form"
"""The form of a message: pure values, which the core shares with the client."""


@each(sources("nodemgr/core"), module_name)
def test_the_core_touches_nothing_but_values(path: Path) -> None:
    touched = {name.split(".")[0] for name in imports(path)} & IMPURE
    assert not touched, f"{module_name(path)} reaches outside: {touched}"
    outside = [
        n
        for n in imports(path)
        if n.split(".")[0] not in sys.stdlib_module_names | {"nodemgr"}
        and not n.startswith(f"{FORM}.")
    ]
    assert not outside, f"{module_name(path)} needs more than the standard library: {outside}"
    assert not [
        n for n in imports(path) if n.startswith("nodemgr.") and not n.startswith("nodemgr.core")
    ]


SCREEN = ROOT / "client_plugin" / "verbs" / "screen"
DRAWN_WITH = {"rich", "textual"}
"""Packages that the room SCREEN loads, which only `top` imports when it draws."""
FRAMEWORK_ROOMS = {
    "prediction.pytorch": {"torch"},
    "prediction.tensorflow": {"tensorflow"},
    "training.pytorch": {"torch"},
    "training.tensorflow": {"numpy", "tensorflow"},
}
"""Rooms that are imported only after a program has imported their framework."""


@each(sources("client_plugin", "sitecustomize"), module_name)
def test_guests_bring_the_standard_library_only(path: Path) -> None:
    """At load: an adapter may import, inside a function, the framework that the user has loaded."""
    allowed = sys.stdlib_module_names | {"client_plugin", "nodemgr_progress"}
    if path.parent == SCREEN:
        allowed |= DRAWN_WITH
    else:
        assert not [name for name in imports(path, at_load=True) if "verbs.screen" in name]
    for room, frameworks in FRAMEWORK_ROOMS.items():
        if path.parent == ROOT / "client_plugin" / room.replace(".", "/"):
            allowed |= frameworks
        else:
            assert not [name for name in imports(path, at_load=True) if room in name]
    outside = [name for name in imports(path, at_load=True) if name.split(".")[0] not in allowed]
    assert not outside, f"{module_name(path)} would load {outside} into a user's process"
    assert not [name for name in imports(path) if name.split(".")[0] == "nodemgr"]


PUBLISH = {"publish", "publish_queued", "note", "_note", "Publish", "_into_queue"}
"""Functions that are called with an event's name."""


def test_every_event_stands_in_the_one_list_of_their_names() -> None:
    """nodemgr/core/model/event_names.py: what `nodemgr events --name` knows."""
    published = set()
    for path in sources("nodemgr/core", "nodemgr/edge"):
        for node in nodes(path):
            named = (
                isinstance(node, ast.Call)
                and getattr(node.func, "attr", getattr(node.func, "id", "")) in PUBLISH
            )
            if named or (isinstance(node, ast.FunctionDef) and node.name in PUBLISH):
                parts: list[ast.AST] = (
                    node.args if isinstance(node, ast.Call) else list(node.args.kw_defaults)
                )  # type: ignore[assignment]
                texts = [
                    leaf.value
                    for part in parts
                    if part
                    for leaf in ast.walk(part)
                    if isinstance(leaf, ast.Constant)
                ]
                published |= {
                    text
                    for text in texts
                    if isinstance(text, str) and re.fullmatch(r"[a-z]+\.[a-z_]+", text)
                }
    assert published == set(EVENT_NAMES)


def test_no_import_circles() -> None:
    """Imports inside functions are counted, those for types alone are not."""
    graph = {}
    for path in sources("nodemgr", "client_plugin"):
        graph[module_name(path)] = set(imports(path, untyped=True))
    names = set(graph)

    def resolve(imported: str) -> str | None:
        return (
            imported
            if imported in names
            else imported.rpartition(".")[0]
            if imported.rpartition(".")[0] in names
            else None
        )

    edges = {
        name: {r for i in targets if (r := resolve(i)) and r != name}
        for name, targets in graph.items()
    }
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"circle: {' -> '.join((*trail[trail.index(name) :], name))}"
        if name not in done:
            for target in sorted(edges[name]):
                walk(target, (*trail, name))
            done.add(name)

    for name in sorted(edges):
        walk(name, ())


@each(sources("nodemgr", "client_plugin", "sitecustomize", "csrc"), module_name)
def test_a_file_says_at_its_top_what_it_is(path: Path) -> None:
    assert ast.get_docstring(parsed(path)), f"{path} has no docstring"


@each(sorted((ROOT / "csrc").rglob("*.[ch]")), lambda path: path.name)
def test_a_c_file_says_at_its_top_what_it_is(path: Path) -> None:
    assert re.match(r"\s*/[*/]", path.read_text()), f"{path} does not open with a comment"


OTHERS_STATE = {"session.asked"}
"""Attributes of other objects that the engine sets: flags of one session's life."""


@each(
    [ROOT / "nodemgr/edge/service.py", *sources("nodemgr/edge/engine", "nodemgr/edge/assembly")],
    module_name,
)
def test_the_engine_is_complete_when_its_constructors_return(path: Path) -> None:
    """No attribute is set on a part from outside, and none is declared without a value."""
    tree = ast.parse(path.read_text())
    stores = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]
    outside = {ast.unparse(node) for node in stores if ast.unparse(node.value) != "self"}
    assert outside <= OTHERS_STATE
    assert not [
        f"{owner.name}.{ast.unparse(line)}"
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef) and not owner.decorator_list and not owner.bases
        for line in owner.body
        if isinstance(line, ast.AnnAssign) and line.value is None
    ]


def test_no_module_is_called_utils() -> None:
    assert not [
        path
        for path in sources("nodemgr", "client_plugin", "csrc")
        if path.stem in {"utils", "util", "helpers", "misc"}
    ]


SCREEN_LINES = 60
TOP = ("nodemgr", "client_plugin", "sitecustomize", "csrc", "bench", "examples", "jupyter")


def test_functions_fit_on_a_screen() -> None:
    """Sixty lines, with the docstring."""
    tall = []
    for path in sources(*TOP):
        for node in nodes(path):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno:
                height = node.end_lineno - node.lineno + 1
                if height > SCREEN_LINES:
                    tall.append(f"{module_name(path)}.{node.name}: {height} lines")
    assert not tall, tall


OPENERS = re.compile(r"(?:^|[.:;!?] )(Who|Whoever|Whose|Whom|Nobody|Whatever|What)\b")
"""Words with which no sentence of a docstring begins: it names its subject."""


def docstrings(path: Path) -> Iterator[str]:
    """Docstrings of modules, classes, functions and attributes."""
    for node in nodes(path):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield text


@each(sources(*TOP, "tests"), module_name)
def test_a_docstring_names_its_subject(path: Path) -> None:
    wrong = [
        text[found.start() : found.end() + 60]
        for text in (" ".join(docstring.split()) for docstring in docstrings(path))
        for found in OPENERS.finditer(text)
    ]
    assert not wrong, f"{module_name(path)}: {wrong}"


C_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*(.*?)\*/', re.DOTALL)
"""A string, which may look like a comment, or a comment and its text."""
NO_SUBJECTS = re.compile(
    r"\b(?:who|whom|whoever|nobody|somebody|whatever|he|him|his|so long as|but for)\b"
    r"|(?:^|[.:;!?] )What\b|^what\b",
    re.IGNORECASE,
)
C_COMMENT_LINES = 12


@each(
    sorted(path for end in ("c", "h", "def") for path in (ROOT / "csrc").rglob(f"*.{end}")),
    lambda path: str(path.relative_to(ROOT / "csrc")),
)
def test_a_comment_in_c_is_short_and_names_its_subject(path: Path) -> None:
    comments = [text for text in C_COMMENT.findall(path.read_text()) if text]
    long = [text for text in comments if text.count("\n") >= C_COMMENT_LINES]
    plain = [" ".join(text.replace("*", " ").split()).strip("- ") for text in comments]
    assert not long, f"{path}: {long}"
    assert not [text for text in plain if NO_SUBJECTS.search(text)], path


@each(sources(*TOP, "tests"), module_name)
def test_a_docstring_begins_with_one_line(path: Path) -> None:
    """A reader of first lines alone reads whole sentences; details follow after a blank line."""
    wrong = [text for text in docstrings(path) if [*text.split("\n"), ""][1].strip()]
    assert not wrong, f"{module_name(path)}: {wrong}"


def counts_examples(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "examples"


@each(
    [p for p in sources("tests") if "hypothesis" in p.read_text() and p != Path(__file__)],
    module_name,
)
def test_every_property_test_counts_its_examples_in_one_place(path: Path) -> None:
    """So that a deep run (tests/deep.py) reaches all of them."""
    tree = parsed(path)
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "settings"
    ]
    for call in calls:
        counts = [word.value for word in call.keywords if word.arg == "max_examples"]
        assert len(counts) == 1, f"{path.name}:{call.lineno}: settings without max_examples"
        assert counts_examples(counts[0]), (
            f"{path.name}:{call.lineno}: max_examples that is not examples(...)"
        )
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            marks = [
                ast.unparse(mark.func) for mark in node.decorator_list if isinstance(mark, ast.Call)
            ]
            assert "given" not in marks or "settings" in marks, (
                f"{path.name}: {node.name} has no @settings"
            )
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    machines = [
        node.name for node in classes if "RuleBasedStateMachine" in map(ast.unparse, node.bases)
    ]
    targets = [
        ast.unparse(node.targets[0]) for node in ast.walk(tree) if isinstance(node, ast.Assign)
    ]
    settled = [target for target in targets if target.endswith(".settings")]
    assert len(settled) == len(machines), f"{path.name}: {machines} and {settled}"


FILE_MARKS = ("slow", "long", "frameworks")
FILE_MARK = re.compile(rf"\b({'|'.join(FILE_MARKS)})\b")


@each(sources("tests"), module_name)
def test_a_mark_that_chooses_tests_stands_in_their_own_file(path: Path) -> None:
    """A run of the slow tests, say, reads no other file (tests/conftest.py)."""
    marks = [
        ast.unparse(node)
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in FILE_MARKS
    ]
    assert set(marks) <= {f"pytest.mark.{name}" for name in FILE_MARKS}, (
        f"{module_name(path)}: {marks}"
    )
    assert not marks or path.name.startswith("test_"), f"{module_name(path)} has no tests"
    assert not [
        node
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"getattr", "applymarker", "item.add_marker", "add_marker"}
        and FILE_MARK.search(ast.unparse(node))
    ], f"{module_name(path)} sets the mark another way"
    assert len(re.findall(r"^pytestmark = ", path.read_text(), re.MULTILINE)) == len(
        [
            node
            for node in nodes(path)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        ]
    ), f"{module_name(path)}: a mark within a string marks nothing"


@each(sources("tests"), module_name)
def test_every_range_of_seeds_counts_its_examples_in_one_place(path: Path) -> None:
    for node in nodes(path):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SEEDS":
            assert "examples(" in ast.unparse(node.value), (
                f"{path.name}:{node.lineno}: SEEDS without examples(...)"
            )
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "pytest.mark.parametrize"
            and ast.unparse(node.args[0]) == "'seed'"
        ):
            seeds = ast.unparse(node.args[1])
            assert re.search(r"SEEDS|examples\(|^seeds\(", seeds), (
                f"{path.name}:{node.lineno}: seeds without examples(...)"
            )


WAITS = {"timeout", "timeout_s"}


def test_what_must_happen_is_waited_for_with_the_one_limit() -> None:
    """tests/support/limits.py: on a busy machine a smaller limit decides the test."""
    limits = ROOT / "tests" / "support" / "limits.py"
    short = [
        f"{module_name(path)}:{call.lineno}"
        for path in sources("tests")
        for call in nodes(path)
        if isinstance(call, ast.Call)
        for word in call.keywords
        if word.arg in WAITS and isinstance(word.value, ast.Constant)
        if isinstance(word.value.value, (int, float)) and word.value.value > 1
    ]
    assert not short, f"{short}: the limit is not WAIT_LIMIT_S"
    named = [
        module_name(path)
        for path in sources("tests")
        for node in nodes(path)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "WAIT_LIMIT_S"
        if path != limits
    ]
    assert not named, f"{named}: WAIT_LIMIT_S stands in {limits.name}"


# -- the rooms of C: the table in csrc/README.md --

CSRC = ROOT / "csrc"
MODULES_MAX = 20
C_TESTS = ("client_c", "cudart", "ledger", "shim", "sim", "wire")


def rooms() -> dict[str, tuple[list[str], str]]:
    """Room -> the rooms that it may include, and the artifacts of which it is a part."""
    rows = re.findall(
        r"^\| `([\w/]+)` \| .+? \| ([\w/, ]*)\| (.+) \|$",
        (CSRC / "README.md").read_text(),
        re.MULTILINE,
    )
    return {
        room: ([name.strip() for name in may.split(",") if name.strip()], part)
        for room, may, part in rows
    }


def c_files() -> list[Path]:
    return sorted(path for suffix in ("c", "h", "def") for path in CSRC.rglob(f"*.{suffix}"))


def test_every_c_file_is_in_a_room() -> None:
    assert {str(path.parent.relative_to(CSRC)) for path in c_files()} == set(rooms())


def test_a_room_may_include_rooms_above_it_only() -> None:
    above: set[str] = set()
    for room, (may, _) in rooms().items():
        assert set(may) <= above, f"{room}: {set(may) - above}"
        above.add(room)


@each(c_files(), lambda path: str(path.relative_to(CSRC)))
def test_includes_follow_the_table(path: Path) -> None:
    room = str(path.parent.relative_to(CSRC))
    for included in re.findall(r'^ *# *include "(.+)"', path.read_text(), re.MULTILINE):
        assert (CSRC / included).exists(), (
            f'{included}: an include is written from csrc, "room/file.h"'
        )
        assert str(Path(included).parent) in [
            room,
            *rooms()[room][0],
        ], f"csrc/README.md does not let {room} include {included}"


def test_the_table_names_the_rooms_of_each_artifact() -> None:
    from csrc import build
    from csrc.sim import build as simulator

    built = build.ROOMS | {
        library: [f"sim/{room}" for room in names] for library, names in simulator.ROOMS.items()
    }
    for room, (_, part) in rooms().items():
        named = (
            set(simulator.ROOMS) if part == "all of `sim`" else set(re.findall(r"`(.+?)`", part))
        )
        assert named == {artifact for artifact, names in built.items() if room in names}, room


def modules_of(folder: Path) -> set[str]:
    """A .c and its .h are one module."""
    listed = [path for path in folder.iterdir() if path.suffix in {".c", ".h", ".def", ".py"}]
    return {path.name if path.suffix == ".py" else path.stem for path in listed}


@each(["bench", "csrc", *(f"tests/{name}" for name in C_TESTS)])
def test_no_folder_holds_more_modules_than_a_newcomer_reads(folder: str) -> None:
    for path in [ROOT / folder, *(ROOT / folder).rglob("*/")]:
        assert len(modules_of(path)) <= MODULES_MAX, (
            f"{path.relative_to(ROOT)} holds {len(modules_of(path))} modules"
        )


# -- rooms

MOST_FILES = 20
PICTURES = (".png", ".gif")
"""The most files of a folder, with its __init__."""
ROOMS = {
    "verbs.presentation": "ways",
    "verbs.arguments": "verbs.presentation ways",
    "verbs.launch": "verbs.presentation ways prediction lease native",
    "verbs.picture": "verbs.presentation",
    "verbs.screen": "verbs.picture verbs.presentation ways",
    "verbs.reading": "verbs.picture verbs.presentation ways",
    "verbs.commands":
        "verbs verbs.presentation verbs.arguments verbs.launch verbs.picture verbs.screen "
        "verbs.reading ways prediction elastic",
    "core.model": "",
    "core.forecast": "core.model",
    "core.placement": "core.model",
    "core.state": "core.model",
    "core.scheduler": "core.model core.placement core.state",
    "core.cluster": "core.model core.state core.scheduler",
    "core.leases": "core.model core.state core.scheduler",
    "core.lifecycle": "core.model core.placement core.state core.scheduler core.leases",
    "core.sharing": "core.model core.state core.scheduler core.leases core.lifecycle",
    "core.elastic":
        "core.model core.placement core.state core.scheduler core.leases core.lifecycle",
    "core.requests":
        "core.model core.state core.scheduler core.leases core.lifecycle core.sharing "
        "core.elastic",
    "core.views": "core.model core.state core.scheduler core.leases core.lifecycle core.requests",
    "edge.host": "paths _native",
    "edge.kernel": "core.model core.views edge.host paths _native",
    "edge.suspension": "edge.host edge.kernel",
    "edge.store": "core.model core.views edge.host edge.kernel",
    "edge.rpc": "core.model edge.host edge.kernel paths _native ways",
    "edge.clients": "core.model edge.host edge.kernel edge.rpc _native",
    "edge.ledger": "core.model core.state edge.kernel _native",
    "edge.gpu": "core.model core.placement core.state core.views edge.host edge.kernel edge.ledger",
    "edge.compute": "core.model core.state core.views _native",
    "edge.gate": "core.views edge.host edge.kernel _native",
    "edge.containers": (
        "core.model core.state core.views edge.host edge.kernel edge.clients edge.gate "
        "arrival paths simulator ways"
        ),
    "edge.executor": "core.model edge.host edge.kernel edge.rpc edge.clients edge.gate",
    "edge.setup":
        "core.model core.placement core.views edge.host edge.store edge.clients edge.gpu "
        "edge.gate edge.executor"

                  " paths simulator ways",
    "edge.engine":
        "core.model core.state core.scheduler core.lifecycle core.sharing core.manager edge.host "
        "edge.kernel edge.store edge.rpc"

                   " edge.clients edge.ledger edge.gpu edge.compute edge.gate edge.containers"
                   " edge.executor edge.setup edge.suspension",
    "edge.forecast":
        "core.model core.forecast core.views edge.host edge.store edge.engine",
    "edge.api":
        "core.model core.state core.scheduler core.leases core.lifecycle core.sharing "
        "core.requests "
        "core.views core.forecast core.placement edge.host "
        "edge.kernel edge.store edge.rpc"

                " edge.clients edge.gpu edge.engine edge.setup paths ways",
    "edge.links": "edge.host",
    "edge.member":
        "core.model core.state core.views edge.host edge.kernel edge.rpc edge.links "
        "edge.clients edge.engine edge.setup edge.api",
    "edge.placement": "core.placement _native",
    "edge.page": "edge.host ways",
    "edge.web":
        "core.model core.state core.lifecycle core.requests edge.host edge.kernel edge.store "
        "edge.rpc edge.clients "
        "edge.engine edge.setup edge.api edge.page paths ways",
    "edge.assembly":
        "core.manager edge.host edge.kernel edge.store edge.rpc edge.clients edge.ledger edge.gpu "
        "edge.compute edge.gate edge.containers edge.executor edge.engine edge.setup edge.api "
        "edge.web edge.suspension edge.forecast edge.placement edge.member",
    "head":
        "core.model core.state core.cluster core.views edge.api edge.clients edge.host "
        "edge.kernel edge.links edge.rpc edge.store paths ways",
    "placement":
        "core.model core.manager core.placement edge.placement ways",
    "cli.users": "ways verbs verbs.arguments",
    "cli.presentation": "cli cli.users paths ways verbs verbs.presentation verbs.arguments",
    "cli.admins":
        "cli.presentation core.model core.placement edge.host edge.kernel edge.setup "
        "edge.page edge.placement edge.service edge.links edge.web head paths placement _native"

                  " ways verbs.arguments verbs.presentation verbs.commands",
}  # fmt: skip
"""Room -> its allowed imports of nodemgr and client_plugin: rooms, and modules beside rooms."""
EVERYWHERE = {"fields", "messages", "units"}
"""Tables of messages and fields, and units, which import these alone: of use in every room."""
TESTED_ELSEWHERE = {
    "nodemgr/core/forecast/least_squares.py": "tests/core/forecast/test_earlier_runs.py",
    "nodemgr/edge/forecast/run_keeper.py": "tests/jobs/test_earlier_runs.py",
    "nodemgr/core/manager.py": "tests/core/test_machine.py",
    "nodemgr/edge/rpc/cost.py": "tests/edge/api/test_bulk_orders.py",
    "nodemgr/core/model/entities.py": "tests/core/model/test_encoding.py",
    "nodemgr/core/model/event_names.py": "tests/test_house.py",
    "nodemgr/core/model/events.py": "tests/core/test_machine.py",
    "nodemgr/core/placement/orders.py": "tests/core/scheduler/test_allocator.py",
    "nodemgr/core/placement/xids.py": "tests/core/lifecycle/test_gpu_records.py",
    "nodemgr/core/scheduler/preference.py": "tests/core/lifecycle/test_gpu_records.py",
    "nodemgr/core/leases/answers.py": "tests/core/lifecycle/test_lease_lives.py",
    "nodemgr/core/leases/begins.py": "tests/core/lifecycle/test_lease_lives.py",
    "nodemgr/core/leases/ends.py": "tests/core/lifecycle/test_lease_lives.py",
    "nodemgr/core/leases/memory_grants.py": "tests/core/lifecycle/test_lease_lives.py",
    "nodemgr/core/leases/stalls.py": "tests/core/lifecycle/test_lease_lives.py",
    "nodemgr/core/lifecycle/failure_rows.py": "tests/core/lifecycle/test_gpu_records.py",
    "nodemgr/core/lifecycle/lowering.py": "tests/core/elastic/test_grants.py",
    "nodemgr/core/state/elastic_grants.py": "tests/core/elastic/test_grants.py",
    "nodemgr/core/model/job_ids.py": "tests/core/lifecycle/test_jobs.py",
    "nodemgr/core/model/schema.py": "tests/core/model/test_encoding.py",
    "nodemgr/core/state/accounting.py": "tests/core/lifecycle/test_memory.py",
    "nodemgr/core/state/cpu_jobs.py": "tests/core/lifecycle/test_jobs.py",
    "nodemgr/core/state/host_use.py": "tests/core/scheduler/test_host_use.py",
    "nodemgr/core/state/draft.py": "tests/core/test_purity.py",
    "nodemgr/core/state/members.py": "tests/core/lifecycle/test_lease_lives.py",
    "nodemgr/core/state/node_state.py": "tests/core/test_purity.py",
    "nodemgr/core/state/queue_line.py": "tests/core/state/test_work_queue.py",
    "nodemgr/core/scheduler/admission.py": "tests/core/lifecycle/test_waiting.py",
    "nodemgr/core/scheduler/own_tasks.py": "tests/core/scheduler/test_backfill.py",
    "nodemgr/core/scheduler/reasons.py": "tests/core/lifecycle/test_waiting.py",
    "nodemgr/core/scheduler/passes.py": "tests/core/scheduler/test_shortcuts.py",
    "nodemgr/core/scheduler/placement.py": "tests/core/scheduler/test_victims.py",
    "nodemgr/core/lifecycle/job_actions.py": "tests/core/lifecycle/test_jobs.py",
    "nodemgr/core/requests/matching.py": "tests/core/scheduler/test_overtaking.py",
    "nodemgr/core/requests/notify.py": "tests/core/lifecycle/test_waiting.py",
    "nodemgr/core/lifecycle/process_events.py": "tests/core/lifecycle/test_stalls.py",
    "nodemgr/core/lifecycle/queue_settings.py": "tests/core/lifecycle/test_jobs.py",
    "nodemgr/core/requests/acquiring.py": "tests/core/lifecycle/test_waiting.py",
    "nodemgr/core/lifecycle/submissions.py": "tests/core/lifecycle/test_jobs.py",
    "nodemgr/core/lifecycle/timers.py": "tests/core/lifecycle/test_stalls.py",
    "nodemgr/core/views/job_rows.py": "tests/core/views/test_pages.py",
    "nodemgr/edge/service.py": "tests/edge/engine/test_daemon.py",
    "nodemgr/edge/host/clock.py": "tests/edge/clients/test_udp.py",
    "nodemgr/edge/host/file_events.py": "tests/supervisor/test_deaths.py",
    "nodemgr/edge/host/journald.py": "tests/edge/executor/test_log_retention.py",
    "nodemgr/edge/host/stderr_log.py": "tests/edge/kernel/test_processes.py",
    "nodemgr/edge/kernel/device_nodes.py": "tests/gate/test_device_nodes.py",
    "nodemgr/edge/kernel/namespaces.py": "tests/inside/test_life.py",
    "nodemgr/edge/kernel/ownership.py": "tests/edge/gpu/test_usage.py",
    "nodemgr/edge/store/disk_reserve.py": "tests/node/test_full_disk.py",
    "nodemgr/edge/store/history_rows.py": "tests/edge/store/test_database.py",
    "nodemgr/edge/rpc/shared_buffers.py": "tests/edge/api/test_job_operations.py",
    "nodemgr/edge/rpc/operation.py": "tests/edge/api/test_control_socket.py",
    "nodemgr/edge/rpc/wire.py": "tests/wire/test_wire.py",
    "nodemgr/edge/host/event_publisher.py": "tests/edge/api/test_control_socket.py",
    "nodemgr/edge/clients/descriptor_filter.py": "tests/edge/clients/test_client_server.py",
    "nodemgr/edge/clients/rate_limits.py": "tests/edge/clients/test_udp.py",
    "nodemgr/edge/clients/sift.py": "tests/edge/clients/test_udp.py",
    "nodemgr/edge/clients/socket_access.py": "tests/edge/clients/test_client_server.py",
    "nodemgr/edge/links/admission.py": "tests/edge/links/test_head_links.py",
    "nodemgr/edge/links/joining.py": "tests/edge/links/test_head_links.py",
    "nodemgr/edge/links/node_link.py": "tests/edge/links/test_head_links.py",
    "nodemgr/edge/links/pace.py": "tests/edge/links/test_head_links.py",
    "nodemgr/edge/links/sockets.py": "tests/edge/links/test_head_links.py",
    "nodemgr/edge/links/unproved.py": "tests/edge/links/test_strangers.py",
    "nodemgr/edge/rpc/pieces.py": "tests/head/test_bad_frames.py",
    "nodemgr/edge/member/joined.py": "tests/edge/member/test_cluster_member.py",
    "nodemgr/edge/member/membership.py": "tests/edge/member/test_cluster_member.py",
    "nodemgr/edge/member/delegation.py": "tests/edge/member/test_cluster_member.py",
    "nodemgr/core/cluster/gpu_rooms.py": "tests/core/cluster/test_gpu_shares.py",
    "nodemgr/edge/member/node_summary.py": "tests/edge/member/test_cluster_member.py",
    "nodemgr/edge/ledger/native_ledger.py": "tests/ledger/test_native_ledger.py",
    "nodemgr/edge/gate/device_gate.py": "tests/gate/test_manager.py",
    "nodemgr/edge/gate/node_gate.py": "tests/gate/test_node_gate.py",
    "nodemgr/edge/gate/ebpf.py": "tests/gate/test_program.py",
    "nodemgr/edge/gate/state_files.py": "tests/gate/test_hook.py",
    "nodemgr/edge/containers/env_directories.py": "tests/edge/engine/test_daemon.py",
    "nodemgr/edge/executor/runner_registry.py": "tests/inside/test_life.py",
    "nodemgr/edge/executor/interface.py": "tests/jobs/test_factories.py",
    "nodemgr/edge/executor/launcher.py": "tests/supervisor/test_supervisor.py",
    "nodemgr/edge/executor/local.py": "tests/supervisor/test_supervisor.py",
    "nodemgr/edge/executor/orphans.py": "tests/supervisor/test_deaths.py",
    "nodemgr/core/cluster/entities.py": "tests/core/cluster/test_walks.py",
    "nodemgr/core/cluster/events.py": "tests/core/cluster/test_walks.py",
    "nodemgr/core/cluster/head.py": "tests/core/cluster/test_walks.py",
    "nodemgr/core/cluster/messages.py": "tests/core/cluster/test_answers.py",
    "nodemgr/core/cluster/pilots.py": "tests/core/cluster/test_pool.py",
    "nodemgr/head/pilot_process.py": "tests/head/test_pool_process.py",
    "nodemgr/head/pool_keeper.py": "tests/head/test_pool_process.py",
    "nodemgr/head/pool_setup.py": "tests/head/test_slurm.py",
    "nodemgr/core/cluster/orders.py": "tests/core/cluster/test_answers.py",
    "nodemgr/cli/admins/head.py": "tests/head/test_head_process.py",
    "nodemgr/cli/admins/node.py": "tests/head/test_head_process.py",
    "nodemgr/head/node_orders.py": "tests/head/test_real_links.py",
    "nodemgr/head/node_words.py": "tests/head/test_verbs.py",
    "nodemgr/head/rows.py": "tests/head/test_verbs.py",
    "nodemgr/head/node_sessions.py": "tests/head/test_service.py",
    "nodemgr/head/store.py": "tests/head/test_engine.py",
    "nodemgr/core/cluster/state.py": "tests/core/cluster/test_walks.py",
    "nodemgr/core/views/assigned.py": "tests/jobs/test_assigned.py",
    "nodemgr/edge/api/assignment_operations.py": "tests/jobs/test_assigned.py",
    "nodemgr/edge/api/run_specs.py": "tests/edge/api/test_job_operations.py",
    "nodemgr/edge/api/idle_watch.py": "tests/node/test_suspension.py",
    "nodemgr/edge/engine/suspension_controller.py": "tests/node/test_suspension.py",
    "nodemgr/edge/forecast/process.py": "tests/edge/forecast/test_trainer.py",
    "nodemgr/edge/suspension/process.py": "tests/edge/suspension/test_suspender.py",
    "nodemgr/edge/engine/client_hub.py": "tests/edge/engine/test_daemon.py",
    "nodemgr/edge/engine/ledger_controller.py": "tests/node/test_restart.py",
    "nodemgr/edge/engine/node_monitor.py": "tests/edge/engine/test_daemon.py",
    "nodemgr/edge/engine/step_engine.py": "tests/edge/engine/test_daemon.py",
    "nodemgr/edge/engine/submission_batches.py": "tests/jobs/test_queue.py",
    "nodemgr/edge/assembly/manager.py": "tests/edge/engine/test_daemon.py",
    "nodemgr/edge/engine/foundation.py": "tests/edge/engine/test_daemon.py",
    "nodemgr/edge/setup/settings_reference.py": "tests/edge/setup/test_installation.py",
    "nodemgr/edge/api/admin_operations.py": "tests/edge/api/test_control_socket.py",
    "nodemgr/edge/api/gpu_operations.py": "tests/cli/admins/test_gpu_orders.py",
    "nodemgr/core/views/gpu_health.py": "tests/cli/admins/test_gpu_orders.py",
    "nodemgr/edge/api/bulk_actions.py": "tests/edge/api/test_job_operations.py",
    "nodemgr/edge/api/session_hosts.py": "tests/inside/test_life.py",
    "nodemgr/edge/api/job_arguments.py": "tests/edge/api/test_job_operations.py",
    "nodemgr/edge/api/job_views.py": "tests/jobs/test_queue.py",
    "nodemgr/edge/api/job_waits.py": "tests/jobs/test_queue.py",
    "nodemgr/edge/store/web_token_rows.py": "tests/edge/web/test_tokens.py",
    "nodemgr/edge/page/address.py": "tests/edge/web/test_web_page.py",
    "nodemgr/edge/page/process.py": "tests/edge/web/test_web_page.py",
}
"""Module of nodemgr without a test file of its own place and name -> the file that tests it."""


SOURCES = ("c", "css", "def", "h", "html", "js", "md", "py")
"""Endings of files that people write."""
FOLDERS = sorted(
    {
        path.parent
        for top in ("nodemgr", "client_plugin", "csrc", "jupyter", "tests", "bench", "docs")
        for end in SOURCES
        for path in (ROOT / top).rglob(f"*.{end}")
        if not {"node_modules", "__pycache__"} & set(path.parts)
    }
)


@each(FOLDERS, lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_holds_few_files(folder: Path) -> None:
    files = [path for end in SOURCES for path in folder.glob(f"*.{end}")]
    assert len(files) <= MOST_FILES, f"{len(files)} files: give them rooms"


def test_no_binary_is_tracked_but_pictures() -> None:
    """A core file of a program that a test ran was committed once. A copy without git has none."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return
    told = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    tracked = (ROOT / name for name in told.stdout.split("\0") if name)
    binary = [
        str(path.relative_to(ROOT))
        for path in tracked
        if path.suffix not in PICTURES and path.is_file() and b"\0" in path.read_bytes()
    ]
    assert binary == []


def room_of(name: str) -> str | None:
    """The room of a module or of a name in one; the module itself if it lies in none.

    None: a name of another package.
    """
    top, _, rest = name.partition(".")
    if top not in {"nodemgr", "client_plugin"}:
        return None
    parts = rest.split(".")
    room = ".".join(parts[:2])
    if room in ROOMS or (top == "nodemgr" and room in {"core.manager", "edge.service"}):
        return room
    return parts[0] or None


def roomed(path: Path) -> bool:
    return room_of(module_name(path)) in ROOMS


@each([path for path in sources("nodemgr", "client_plugin") if roomed(path)], module_name)
def test_rooms_import_as_their_table_says(path: Path) -> None:
    own = room_of(module_name(path))
    assert own is not None
    others = {room for name in imports(path) if (room := room_of(name)) not in {None, own}}
    forbidden = others - set(ROOMS[own].split()) - EVERYWHERE
    assert not forbidden, (
        f"{module_name(path)} imports {forbidden}; a module of {own} may import"
        f" {ROOMS[own] or 'nothing'}"
    )


def test_every_module_has_a_room() -> None:
    """Beside the rooms stands a package's main module alone."""
    inside = [
        path
        for path in sources(
            "nodemgr/core",
            "nodemgr/edge",
            "nodemgr/cli",
            "nodemgr/head",
            "nodemgr/placement",
            "client_plugin/verbs",
        )
        if path.name != "__init__.py"
    ]
    outside = {str(path.relative_to(ROOT)) for path in inside if not roomed(path)}
    assert outside == {
        "nodemgr/core/manager.py",
        "nodemgr/edge/service.py",
        "client_plugin/verbs/__main__.py",
    }
    rooms = {room_of(module_name(path)) for path in inside if roomed(path)}
    assert rooms == set(ROOMS)


def test_rooms_stand_in_no_circle() -> None:
    """A room imports only rooms that stand above it in the table."""
    above: set[str] = set()
    for room, allowed in ROOMS.items():
        below = (set(allowed.split()) & set(ROOMS)) - above
        assert not below, f"{room} stands above {below}, which it imports"
        above.add(room)


@each(
    [path for path in sources("nodemgr", "client_plugin") if path.name == "__init__.py"],
    module_name,
)
def test_a_room_says_what_it_may_import(path: Path) -> None:
    text = ast.get_docstring(parsed(path)) or ""
    assert room_of(module_name(path)) not in ROOMS or "\nMay import: " in text, (
        f"{path} does not say what it may import"
    )


@each(
    [path for path in sources("nodemgr/core", "nodemgr/edge") if path.name != "__init__.py"],
    module_name,
)
def test_every_module_has_its_test(path: Path) -> None:
    place = path.relative_to(ROOT / "nodemgr")
    like_named = ROOT / "tests" / place.with_name(f"test_{place.name}")
    elsewhere = TESTED_ELSEWHERE.get(str(path.relative_to(ROOT)))
    if elsewhere is None:
        assert like_named.is_file(), (
            f"{place}: no {like_named.relative_to(ROOT)}, and no line in TESTED_ELSEWHERE"
        )
    else:
        assert not like_named.is_file(), (
            f"{place} has a test of its name: its line in TESTED_ELSEWHERE is too much"
        )
        assert (ROOT / elsewhere).is_file(), f"{place}: there is no {elsewhere}"


def test_only_modules_are_tested_elsewhere() -> None:
    assert not [place for place in TESTED_ELSEWHERE if not (ROOT / place).is_file()]


def test_the_rooms_stand_in_the_architecture() -> None:
    """Each with the first paragraph of its docstring."""
    section = (
        (ROOT / "docs" / "inside" / "parts.md")
        .read_text()
        .partition("## The rooms\n")[2]
        .partition("\n## ")[0]
    )
    told = dict(re.findall(r"^\| `([a-z_/]+)` \| (.+) \|$", section, re.MULTILINE))
    folders = [
        path.parent
        for hall in ("core", "edge", "cli")
        for path in (ROOT / "nodemgr" / hall).glob("*/__init__.py")
    ]
    folders += [path.parent for path in (ROOT / "client_plugin").glob("*/**/__init__.py")]
    folders += [ROOT / "nodemgr" / name for name in ("head", "messages", "placement")]
    found = {}
    for folder in folders:
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
        assert text, folder
        found[str(folder.relative_to(ROOT))] = " ".join(text.partition("\n\n")[0].split())
    assert told == found
