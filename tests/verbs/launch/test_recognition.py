"""The key of a command: what makes two runs the same, and what does not."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_plugin.prediction import closure
from client_plugin.verbs.launch import programs, recognition

Known = dict[str, Any] | None


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # other processes may compile modules of this interpreter meanwhile, or install some
    monkeypatch.setattr(closure, "package_folders", lambda prefix: [(prefix, -1, 1, "")])
    for name in list(os.environ):
        if recognition.VARIABLES.fullmatch(name):
            monkeypatch.delenv(name)
    (tmp_path / "train.py").write_text("import net\n")
    (tmp_path / "config.yaml").write_text("lr: 1\n")
    (tmp_path / "data").mkdir()
    for number in range(20):
        (tmp_path / "data" / str(number)).touch()
    return tmp_path


def known(*words: str) -> Known:
    return recognition.recognised([*words], programs.program_of(words[0]))


def python(*words: str) -> Known:
    return known(sys.executable, *words)


RUN = ("train.py", "--epochs", "3", "--lr=0.1", "config.yaml", "data", "data/new.pt", "resnet50")


def test_numbers_are_told_apart_from_the_key(directory: Path) -> None:
    first, other = python(*RUN), python("train.py", "--epochs", "20", "--lr=1e-3", *RUN[4:])
    assert first is not None
    assert other is not None
    assert first["key"] == other["key"]
    assert (first["numbers"], other["numbers"]) == ([3.0, 0.1], [20.0, 0.001])


def changed_script(directory: Path) -> None:
    (directory / "train.py").write_text("import net2\n")


def changed_config(directory: Path) -> None:
    (directory / "config.yaml").write_text("lr: 2\n")


def ten_times_the_data(directory: Path) -> None:
    for number in range(20, 200):
        (directory / "data" / str(number)).touch()


def written_output(directory: Path) -> None:
    (directory / "data" / "new.pt").touch()


@pytest.mark.parametrize(
    "change", [changed_script, changed_config, ten_times_the_data, written_output]
)
def test_what_an_argument_names_is_part_of_the_key(
    directory: Path, change: Callable[[Path], None]
) -> None:
    before = python(*RUN)
    assert python(*RUN) == before
    change(directory)
    assert python(*RUN) != before


@pytest.mark.parametrize(
    "other",
    [
        ("-O", *RUN),
        (*RUN[:-1], "resnet101"),
        (*RUN, "--amp"),
        (*RUN, "meta/llama-7b"),
        (*RUN, "meta/llama-70b"),
    ],
)
def test_other_words_are_another_command(directory: Path, other: tuple[str, ...]) -> None:
    assert python(*other) not in (None, python(*RUN))


def test_a_name_with_slashes_is_no_new_file(directory: Path) -> None:
    assert python("train.py", "meta/llama-7b") != python("train.py", "meta/llama-70b")
    assert python("train.py", "data/one.pt") == python("train.py", "data/two.pt")


def test_a_copy_in_another_directory_has_other_modules_beside_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = directory / "copy"
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("copy"))
    script, copied = str(directory / "train.py"), str(copy / "train.py")
    assert python(script) not in (None, python(copied))
    assert known("sh", script) not in (None, known("sh", copied)), "as torchrun's"
    first = [python("train.py"), python("-m", "train"), python("-c", "import net")]
    monkeypatch.chdir(copy)
    assert None not in first
    for before, words in zip(
        first, (("train.py",), ("-m", "train"), ("-c", "import net")), strict=True
    ):
        assert python(*words) != before


def test_so_much_is_looked_at_and_no_more(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it sizes count, which `submit` does not wait for."""
    read: list[int] = []
    content = closure.content
    monkeypatch.setattr(closure, "content", lambda *of: read.append(1) or content(*of))
    monkeypatch.setattr(recognition, "MAX_FILE_BYTES", 100)
    for number in range(5):
        (directory / str(number)).write_text("x" * 40)
    names = [f"./{number}" for number in range(5)]
    before = known("true", *names)
    assert len(read) == 1 + 2, "the program, and two files"
    (directory / "4").write_text("y" * 40)
    assert known("true", *names) == before
    (directory / "0").write_text("y" * 40)
    assert known("true", *names) != before
    monkeypatch.setattr(recognition, "MAX_ENTRIES", 30)
    shutil.copytree(directory / "data", directory / "more")
    assert known("true", "data", "more") is not None
    assert known("true", *["x"] * (recognition.MAX_WORDS + 1)) is None


def test_the_allocator_s_variable_is_part_of_the_key(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = python(*RUN)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert python(*RUN) != before


def test_an_installation_of_packages_is_another_program(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = python(*RUN)
    monkeypatch.setattr(closure, "package_folders", lambda prefix: [(prefix, -1, 2, "")])
    assert python(*RUN) != before


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("-",),
        ("-i",),
        ("-m", "torch.distributed.run", "train.py"),
        ("absent.py",),
        ("train.py", "-"),
        ("train.py", *map(str, range(recognition.MAX_NUMBERS + 1))),
    ],
)
def test_a_command_whose_program_is_no_file_of_its_own_has_no_key(
    directory: Path, words: tuple[str, ...]
) -> None:
    assert python(*words) is None


def test_a_module_below_the_directory_and_a_line_have_a_key(directory: Path) -> None:
    assert python("-m", "train") not in (None, python("train.py"))
    assert python("-uc", "print(1)") not in (None, python("-uc", "print(2)"))
    (directory / "package").mkdir()
    (directory / "package" / "__main__.py").touch()
    assert python("-m", "package") is not None


def test_a_program_that_is_too_large_has_no_key(directory: Path) -> None:
    with (directory / "train.py").open("w") as file:
        file.truncate(recognition.MAX_PROGRAM_BYTES + 1)
    assert python("train.py") is None


def test_a_script_that_the_kernel_starts_counts_itself(directory: Path) -> None:
    script = directory / "train.py"
    script.write_text(f"#!{sys.executable}\nimport net\n")
    script.chmod(0o755)
    (directory / "link").symlink_to(script)
    first = known("./train.py", "--epochs", "3")
    assert first is not None
    assert known("./link", "--epochs", "3") == first
    assert python("./train.py", "--epochs", "3") == first, "as its own process sees its command"
    script.write_text(f"#!{sys.executable}\nimport net2\n")
    assert known("./train.py", "--epochs", "3") != first


def test_a_shell_needs_a_script_or_a_line(directory: Path) -> None:
    (directory / "train.sh").write_text("python train.py\n")
    assert known("sh") is None
    assert known("sh", "-i") is None
    assert known("sh", "-c", "python train.py") is not None
    first = known("sh", "train.sh")
    assert first is not None
    (directory / "train.sh").write_text("python train.py --amp\n")
    assert known("sh", "train.sh") != first


def test_another_program_is_another_key(directory: Path) -> None:
    first, second = directory / "one", directory / "two"
    shutil.copy("/bin/true", first)
    shutil.copy("/bin/true", second)
    assert known("./one") == known("./two") is not None
    with second.open("ab") as file:
        file.write(b"more")
    assert known("./one") != known("./two")
