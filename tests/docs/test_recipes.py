"""The recipes of CONTRIBUTING.md, each followed in a copy of the sources."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")}
COPIED = ("nodemgr", "client_plugin", "sitecustomize", "csrc")
PATH = re.compile(r"`((?:nodemgr|client_plugin|csrc|tests|docs|deploy|sitecustomize)/[\w/.]+)`")
INVENTED = re.compile(r"`(\w+\.py)`")


class Recipe(NamedTuple):
    edits: tuple[tuple[str, str, str], ...]
    """Of a file that the recipe names: behind this text comes that one."""
    script: str
    """A program that fails where the recipe has not led to its end."""


RECIPES = {
    "Add a field": Recipe(
        (
            (
                "client_plugin/fields.py",
                "RUN = (\n",
                '    Field("note_color", COUNT, "The colour.", low=1, high=255,'
                ' verbs=RUN_AND_SUBMIT, variable="NODEMGR_NOTE_COLOR", wire="note_color"),\n',
            ),
            (
                "nodemgr/core/model/entities.py",
                "    is_memory_filled: bool = False\n",
                "    note_color: int | None = None\n",
            ),
        ),
        """
from client_plugin import fields
from client_plugin.verbs.arguments import parser
from client_plugin.verbs.commands import submit
from csrc import build
from nodemgr.core.model.encoding import decode_as, encode_as
from nodemgr.core.model.entities import RunSpec
from nodemgr.edge.api import run_specs
from nodemgr.edge.api.job_operations import SUBMISSION
from nodemgr.edge.clients.client_sessions import OF_RUN
said = parser.parse(submit.VERB, ["--env", "a", "--note-color", "7", "--", "true"])
wish = fields.wished(vars(said))
assert wish["note_color"] == 7
assert fields.variables(wish)["NODEMGR_NOTE_COLOR"] == "7"
assert fields.asked({"NODEMGR_NOTE_COLOR": "7"}) == {"note_color": 7}
assert "--note-color" in parser.help_of(submit.VERB)
assert SUBMISSION["note_color"].parse(7) == 7
assert ("note_color", "note_color") in OF_RUN
assert 'NM_WISH(note_color, 0, "NODEMGR_NOTE_COLOR", 1, 1,' in build.wishes()
run = run_specs.take({"gpus": 1, "note_color": 7}, ("true",), "", is_elastic=False)
assert decode_as(RunSpec, "run", encode_as(RunSpec, run)).note_color == 7
""",
    ),
    "Add a setting": Recipe(
        (
            (
                "nodemgr/edge/setup/settings.py",
                "OPTIONS = (\n",
                '    SettingRow("note_color", _integer(1, 255), "The colour of notes."),\n',
            ),
            (
                "nodemgr/edge/setup/settings.py",
                "    state_dir: Path\n    core: Config = field(default_factory=Config)\n",
                "    note_color: int = 7\n",
            ),
        ),
        """
from nodemgr.edge.setup import settings, settings_reference
assert settings.load(environment={}).note_color == 7
assert settings.load(environment={"NODEMGR_NOTE_COLOR": "9"}).note_color == 9
assert "| `note_color` | The colour of notes. |" in settings_reference.page()
assert "# note_color = 7" in settings_reference.config_file()
""",
    ),
    "Add a verb": Recipe(
        (
            (
                "client_plugin/verbs/__init__.py",
                "VERBS = {\n",
                '    "idle": "Show the GPUs without tasks.",\n',
            ),
        ),
        """
from client_plugin import verbs
from client_plugin.verbs.arguments import parser
from nodemgr.cli.presentation import group
assert "idle" in group.VERBS
assert parser.parse(verbs.find("idle"), ["--json"]).as_json
""",
    ),
    "Add a placement policy": Recipe(
        (
            (
                "nodemgr/core/placement/orders.py",
                "ORDERS = {\n",
                '    "last": PlainOrder(lambda gpu: (-gpu.number,), "highest index first"),\n',
            ),
            ("client_plugin/fields.py", "PLACEMENTS = (", '"last", '),
        ),
        """
from client_plugin import fields
from nodemgr.edge.setup import settings, settings_reference
assert settings.load({"placement": "last"}, environment={}).core.placement == "last"
assert "last: highest index first;" in settings_reference.page()
assert "last" in next(row for row in fields.QUOTA if row.name == "placement").words
""",
    ),
    "Add a metric": Recipe(
        (
            (
                "nodemgr/edge/page/metric_table.py",
                "OF_NODE = (\n",
                '    Metric("nodemgr_notes", GAUGE, "", "Notes, by colour.", ("color",)),\n',
            ),
            (
                "nodemgr/edge/web/metrics_reference.py",
                "LABELS = {\n",
                '    "color": "One of 7.",\n',
            ),
        ),
        """
from nodemgr.edge.web import metrics_reference
assert "`nodemgr_notes`" in metrics_reference.page()
assert "One of 7." in metrics_reference.page()
""",
    ),
}


def copy(directory: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "_sim", "_bin", "_lib", "static")
    for name in COPIED:
        shutil.copytree(ROOT / name, directory / name, ignore=ignored)


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_leads_to_its_end(title: str, tmp_path: Path) -> None:
    recipe, section = RECIPES[title], SECTIONS[title]
    copy(tmp_path)
    for name, behind, text in recipe.edits:
        assert f"`{name}`" in section, f"{title} does not name {name}"
        before = (tmp_path / name).read_text()
        assert behind in before, f"{name} has no longer {behind!r}"
        (tmp_path / name).write_text(before.replace(behind, behind + text, 1))
    if title == "Add a verb":
        commands = tmp_path / "client_plugin" / "verbs" / "commands"
        imports = (commands / "release.py").read_text().partition("\ndef ")[0]
        body = re.findall(r"```python\n(.*?)```", section, re.S)[0]
        imports = imports.replace("import RUN_DIR,", "import JSON, RUN_DIR,")
        (commands / "idle.py").write_text(imports + re.sub("^   ", "", body, flags=re.M))
    done = subprocess.run(
        [sys.executable, "-c", recipe.script], cwd=tmp_path, capture_output=True, text=True,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("title", [title for title in SECTIONS if title.startswith("Add ")])
def test_the_files_of_a_recipe_are_there(title: str) -> None:
    own = set(INVENTED.findall(SECTIONS[title]))
    for name in PATH.findall(SECTIONS[title]):
        assert (ROOT / name).exists() or Path(name).name in own, f"{title}: there is no {name}"
