"""The words of torchrun as the command of an elastic task: which script it would start."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_plugin.elastic import torchrun

LAUNCH = ["python3", "-m", "torch.distributed.launch"]
RUN = ["python3.11", "-u", "-m", "torch.distributed.run"]


@pytest.mark.parametrize(
    ("command", "script", "unused"),
    [
        ([*RUN, "train.py", "--lr", "1"], "python3.11 -u train.py --lr 1", []),
        ([*RUN, "--nproc_per_node=4", "t.py"], "python3.11 -u t.py", ["--nproc-per-node"]),
        ([*RUN, "--standalone", "-m", "pkg.train"], "python3.11 -u -m pkg.train", ["--standalone"]),
        ([*RUN, "--no-python", "./train", "--nnodes", "9"], "./train --nnodes 9", []),
        ([*LAUNCH, "train.py"], "python3 -u train.py --local-rank=0", []),
        ([*LAUNCH, "--use-env", "train.py"], "python3 -u train.py", []),
    ],
)
def test_the_script_takes_the_place_of_torchrun(
    command: list[str], script: str, unused: list[str]
) -> None:
    found = torchrun.replaced(command)
    assert found is not None
    assert (" ".join(found.command), found.unused) == (script, unused)


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["python", "train.py", "-m", "torch.distributed.run"],
        ["python", "-c", "pass", "-m", "torch.distributed.run"],
        ["python", "-m", "pkg.train"],
        ["bash", "run.sh"],
    ],
)
def test_any_other_command_is_left_as_it_is(command: list[str]) -> None:
    assert torchrun.replaced(command) is None


@pytest.mark.parametrize(
    "words", [[], ["--unknown", "train.py"], ["--nnodes"], ["--no-python", "-m", "pkg.train"]]
)
def test_words_that_torchrun_refuses_are_refused(words: list[str]) -> None:
    with pytest.raises(torchrun.BadTorchrun):
        torchrun.replaced([*RUN, *words])


def test_torchruns_own_first_line_names_its_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHON_EXEC", raising=False)
    program = tmp_path / "torchrun"
    program.write_text("#!/opt/env/bin/python3\n")
    found = torchrun.replaced([str(program), "train.py"])
    assert found is not None
    assert found.command == ["/opt/env/bin/python3", "-u", "train.py"]
