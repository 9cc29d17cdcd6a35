"""Additions to the help of users' verbs: examples, and the values of absent options.

Knows: words. Must not know: the work of a verb. Imported for help alone.
"""

from __future__ import annotations

from client_plugin import fields

EXAMPLES = {
    "run": (
        "nodemgr run --env alice --gpus 2 --wait 10min -- torchrun train.py",
        "nodemgr run --env alice --gpus 1-4 --elastic -- python train.py",
    ),
    "submit": (
        "nodemgr submit --env alice --gpus 2 --time 4h -- python train.py --seed 1",
        "nodemgr submit --env alice --gpus 1 --after j12 --from commands.txt",
    ),
    "predict": (
        "nodemgr predict -- python train.py --batch 64",
        "nodemgr predict --gpu A100-80GiB --steps 10000 -- python train.py",
    ),
    "queue": ("nodemgr queue", "nodemgr queue --env alice --expand"),
    "queue position": ("nodemgr queue position j12", "nodemgr queue position r17"),
    "queue withdraw": (
        "nodemgr queue withdraw j12 j13.3",
        "nodemgr queue withdraw --name 'sweep-*' --mine",
    ),
    "queue hold": ("nodemgr queue hold j12", "nodemgr queue hold --state queued --all-of alice"),
    "queue unhold": ("nodemgr queue unhold j12", "nodemgr queue unhold --mine"),
    "queue move": ("nodemgr queue move j12 low", "nodemgr queue move j12 --first"),
    "queue requeue": ("nodemgr queue requeue j12", "nodemgr queue requeue --state failed --mine"),
    "queue create": (
        "nodemgr queue create night --rank 50",
        "nodemgr queue create urgent --max-restarts 3",
    ),
    "queue rm": ("nodemgr queue rm night",),
    "logs": ("nodemgr logs j12", "nodemgr logs --follow j12.3"),
    "wait": ("nodemgr wait j12 && ./evaluate.sh", "nodemgr wait j12 j13 --json"),
    "history": ("nodemgr history --since 7d", "nodemgr history j12"),
    "report": ("nodemgr report --since 30d", "nodemgr report --env alice --json"),
    "status": ("nodemgr status", "nodemgr status --env alice --json"),
    "top": ("nodemgr top", "nodemgr top --once --env alice"),
    "release": ("nodemgr release t17 r18", "nodemgr release --state stalled"),
    "suspend": ("nodemgr suspend t17",),
    "resume": ("nodemgr resume t17",),
    "keep": ("nodemgr keep t17 --for 2h",),
    "kernel": ("nodemgr kernel install alice --user", "nodemgr kernel list"),
    "kernel install": (
        "nodemgr kernel install alice --user",
        "nodemgr kernel install alice --user --gpus 1 --python /usr/bin/python3",
    ),
    "kernel list": ("nodemgr kernel list", "nodemgr kernel list --json"),
    "kernel rm": ("nodemgr kernel rm nodemgr-alice",),
    "doctor": ("nodemgr doctor", "nodemgr doctor --json"),
}
"""Examples by verb, in the form in which they are typed."""

OF_USERS = "the environment around you, else the only one that you may enter"
OF_NODE = "the environment around you, else the node (admins) or the only one that you may enter"
"""Without --env, by the way that the verb chooses (client_plugin/ways/choice.py)."""
DEFAULTS = {
    **{row.option: row.default for row in fields.RUN if row.verbs},
    **{f"queue create {row.option}": row.default for row in fields.OF_QUEUE},
    "submit --name": "the name of the command",
    "--run-dir": "that of the manager that is found here",
    "--env": "the environment around you, else all that you may see",
    "--acquire": "as the quota says: at the first use of CUDA, or at a framework's import",
    **{f"{verb} --env": OF_USERS for verb in ("run", "submit", "predict")},
    **{
        f"{verb} --env": OF_NODE
        for verb in ("status", "top", "release", "suspend", "resume", "keep")
    },
    "queue create --user": "everybody",
    "queue create --group": "none",
    "queue create --no-user": "none",
    "queue create --no-group": "none",
    "--from": "the command on this line",
    "--name": "any",
    "--state": "any",
    "--all-of": "the jobs that are named",
    "--attempt": "the last",
    "--count": "without --since the last 100, else all",
    "history --since": "the last ones",
    "report --since": "7d",
    "--gpu": "each GPU model of the node",
    "--steps": "as the program says by nodemgr_client.progress, else unknown",
    "--limit": "1min",
    "kernel install --python": "the python3 of your PATH",
    "kernel install --name": "nodemgr-ENV",
    "kernel install --display-name": "Python 3 with GPUs (ENV), or (ENV, NAME) with --name",
}
"""Defaults by option, or by verb and option where they differ."""


def default_of(verb: str, option: str) -> str:
    """Empty: none is known."""
    return DEFAULTS.get(f"{verb} {option}") or DEFAULTS.get(option, "")
