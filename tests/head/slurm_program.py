"""sbatch, squeue, scancel, sinfo, scontrol and srun of a stand-in: the state is a folder.

`python slurm_program.py FOLDER COMMAND ARGUMENT...`; slurm_site.py makes scripts of that.
A job starts when a node is free and a command is given. `FOLDER/fails` names commands that fail,
each with the line that they print.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.nodes: list[str] = (path / "nodes").read_text().split()

    def jobs(self) -> list[dict[str, Any]]:
        found = [json.loads(file.read_text()) for file in sorted(self.path.glob("job-*"))]
        for job in found:
            if job["pid"] and not is_alive(job["pid"]):
                (self.path / f"job-{job['id']:06}").unlink(missing_ok=True)
        return [job for job in found if not job["pid"] or is_alive(job["pid"])]

    def save(self, job: dict[str, Any]) -> None:
        fresh = self.path / f"fresh-{os.getpid()}"
        fresh.write_text(json.dumps(job))
        fresh.replace(self.path / f"job-{job['id']:06}")

    def schedule(self) -> None:
        jobs = self.jobs()
        taken = {job["node"] for job in jobs if job["pid"]}
        for job in jobs:
            free = [node for node in self.nodes if node not in taken]
            if job["pid"] or not free or (job["asked"] and job["asked"] not in free):
                continue
            job["node"] = job["asked"] or free[0]
            taken.add(job["node"])
            around = {**os.environ, "SLURMD_NODENAME": job["node"], "SLURM_JOB_ID": str(job["id"])}
            process = subprocess.Popen(
                ["/bin/sh", "-c", job["script"]], env=around, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            job["pid"] = process.pid
            self.save(job)


def option(words: list[str], name: str) -> str:
    for at, word in enumerate(words):
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if word == name:
            return words[at + 1]
    return ""


def sbatch(folder: Folder, words: list[str]) -> None:
    if "--test-only" in words:
        return
    number = int((folder.path / "next").read_text())
    (folder.path / "next").write_text(str(number + 1))
    folder.save(
        {
            "id": number, "name": option(words, "--job-name"), "node": "", "pid": 0,
            "asked": option(words, "--nodelist"), "script": sys.stdin.read(), "words": words,
        }
    )  # fmt: skip
    folder.schedule()
    print(number)


def squeue(folder: Folder, _words: list[str]) -> None:
    folder.schedule()
    for job in folder.jobs():
        print(f"{job['name']}|{'RUNNING' if job['pid'] else 'PENDING'}|{job['node']}")


def scancel(folder: Folder, words: list[str]) -> None:
    for job in folder.jobs():
        if job["name"] != option(words, "--name"):
            continue
        if job["pid"]:
            os.kill(job["pid"], signal.SIGTERM)
        else:
            (folder.path / f"job-{job['id']:06}").unlink()


def sinfo(folder: Folder, words: list[str]) -> None:
    if "--version" in words:
        print("slurm-wlm 22.05.8")
    elif option(words, "--format") == "%G":
        print("\n".join("gpu:h100:2(S:0)" for _ in folder.nodes))
    else:
        print(f"gpu|up|{len(folder.nodes)}|infinite")


def scontrol(folder: Folder, _words: list[str]) -> None:
    print((folder.path / "site").read_text())


def main() -> None:
    path, command, words = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    fails = dict(line.split(" ", 1) for line in (path / "fails").read_text().splitlines())
    if command in fails:
        sys.exit(fails[command])
    if command == "srun":
        program = next(at for at, word in enumerate(words) if not word.startswith("-"))
        os.execv(words[program], words[program:])
    globals()[command](Folder(path), words)


if __name__ == "__main__":
    main()
