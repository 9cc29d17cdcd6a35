"""The help of administrators' verbs: its form, examples, and the values of absent options.

Knows: words. Must not know: the work of a verb. (Users' verbs:
client_plugin/verbs/presentation/helps.py.)
"""

from __future__ import annotations

import inspect

import click

from client_plugin import fields
from client_plugin.verbs.arguments import parser

EXAMPLES = {
    "allocations": ("nodemgr allocations alice --since 7d", "nodemgr allocations --json"),
    "events": (
        "nodemgr events --follow --name task",
        "nodemgr events --since 1200 --count 100 --json",
    ),
    "doctor": ("nodemgr doctor", "nodemgr doctor --env alice --json"),
    "env": ("nodemgr env create alice --gpus 2 --memory 48GiB", "nodemgr env show alice"),
    "env create": (
        "nodemgr env create alice --gpus 2 --memory 48GiB",
        "nodemgr env create ci --gpus 1 --priority low --no-gpu cpu",
    ),
    "env list": ("nodemgr env list", "nodemgr env list --json"),
    "env show": ("nodemgr env show alice",),
    "env rm": ("nodemgr env rm alice", "nodemgr env rm alice --force"),
    "env rekey": ("nodemgr env rekey alice --grace 10min",),
    "quota": ("nodemgr quota set alice --gpus 2 --memory 48GiB", "nodemgr quota show"),
    "quota set": (
        "nodemgr quota set alice --gpus 2 --memory 48GiB --default-gpus 1",
        "nodemgr quota set alice --priority high --class best-effort --compute 40%",
    ),
    "quota show": ("nodemgr quota show alice", "nodemgr quota show --json > quotas.json"),
    "quota load": ("nodemgr quota load quotas.json",),
    "quota rm": ("nodemgr quota rm alice", "nodemgr quota rm alice --force"),
    "gpu": ("nodemgr gpu drain 3 --note 'fan'", "nodemgr gpu resume 3"),
    "gpu drain": ("nodemgr gpu drain 3 --note 'fan'",),
    "gpu resume": ("nodemgr gpu resume 3",),
    "gpu failed": ("nodemgr gpu failed 3 --note 'wrong results'",),
    "gpu repaired": ("nodemgr gpu repaired 3 --note 'new riser'",),
    "head": ("nodemgr head setup --address 10.0.0.5:7470", "nodemgr head word gn1"),
    "head setup": (
        "nodemgr head setup --address 10.0.0.5:7470",
        "nodemgr head setup --engine slurm --min-nodes 1 --max-nodes 8 --partition gpu",
    ),
    "head serve": ("nodemgr head serve --dir ~/try/head --run-dir ~/try/head-run",),
    "head word": ("nodemgr head word gn1",),
    "head doctor": ("nodemgr head doctor",),
    "head metrics": ("nodemgr head metrics --run-dir ~/try/head-run",),
    "head copy": ("nodemgr head copy /backup/head.db",),
    "head restore": ("nodemgr head restore /backup/head.db",),
    "node": ("nodemgr node list", "nodemgr node drain gn1 --note 'a new disk'"),
    "node list": ("nodemgr node list", "nodemgr node list --json"),
    "node show": ("nodemgr node show gn1",),
    "node join": ("nodemgr node join head.example.org:7300 WORD",),
    "node pilot": ("nodemgr node pilot 7 10.0.0.5:7470 --seconds 86400 --grace 30",),
    "node emptied": ("nodemgr node emptied --within 60",),
    "node leave": ("nodemgr node leave",),
    "node drain": ("nodemgr node drain gn1 --note 'a new disk'",),
    "node resume": ("nodemgr node resume gn1",),
    "node lost": ("nodemgr node lost gn1",),
    "node remove": ("nodemgr node remove gn1",),
    "web": ("nodemgr web token --env alice --for 8h", "nodemgr web tokens"),
    "web token": ("nodemgr web token --env alice --for 8h", "nodemgr web token --admin"),
    "web tokens": ("nodemgr web tokens --json",),
    "web page": ("nodemgr web page --run-dir /run/nodemgr",),
    "web revoke": ("nodemgr web revoke w3",),
    "serve": (
        "nodemgr serve --simulate 2x16GiB --run-dir ~/try/run --state-dir ~/try/state",
        "nodemgr serve --udp 10.0.0.5:7000",
    ),
    "setup": ("nodemgr setup --dry-run", "nodemgr setup --yes"),
    "demo": ("nodemgr demo", "nodemgr demo --simulate 4x80GiB"),
    "placement": ("nodemgr placement evaluate --seeds 30",),
    "placement train": (
        "nodemgr placement train --out placement.json",
        "nodemgr placement train --trace jobs.csv.gz --gpus 8 --out placement.json",
    ),
    "placement evaluate": ("nodemgr placement evaluate --weights placement.json --seeds 300",),
    "placement export": ("nodemgr placement export placement.checkpoint placement.json",),
    "placement use": ("nodemgr placement use placement.json",),
    "completion": ('eval "$(nodemgr completion bash)"',),
}
"""Examples by command, in the form in which they are typed."""

QUOTA_DEFAULTS = {
    **{field.option: field.default for field in fields.QUOTA},
    "--user": "the manager's user alone", "--no-user": "none", "--no-group": "none",
}  # fmt: skip
"""The defaults of a new environment."""
DEFAULTS = {
    "--run-dir": "that of the manager that is found here",
    "--state-dir": "/var/lib/nodemgr for root, else ~/.local/state/nodemgr",
    "allocations --since": "all that is kept",
    "events --since": "the last ones",
    "events --name": "all events",
    "events --count": "without --since the last 50, else all",
    "doctor --state-dir": "that of the manager that answers",
    "doctor --env": "the environment around you, if there is one",
    "serve --run-dir": "/run/nodemgr for root, else a directory of yours",
    "serve --simulate": "the GPUs of this machine",
    "serve --config": "for the node's own manager /etc/nodemgr/config.toml",
    "serve --udp": "no UDP",
    "serve --web": "no web page",
    "serve --web-host": "localhost and the page's own address",
    "serve --web-base": "/",
    "web token --env": "the environment around you, or the only one that lets you in",
    "web tokens --env": "all that you may see",
    "web revoke --env": "the token's, where you are an administrator",
    **{
        f"placement {verb} {option}": default
        for verb in ("train", "evaluate")
        for option, default in (
            ("--trace", "batches are made up"),
            ("--checkpoint", "none: a failed job begins anew"),
            ("--drift", "never"),
        )
    },
    "placement evaluate --weights": "none",
    **{f"gpu {verb} --note": "no note" for verb in ("drain", "resume", "failed", "repaired")},
    "head setup --name": "hq",
    "head word --user": "root",
    "head setup --address": "none",
    "head setup --engine": "own",
    "head setup --partition": "the site's default",
    "head setup --min-nodes": "0",
    "head setup --max-nodes": "8",
    "head setup --time": "24h",
    "head setup --grace": "30s",
    "head setup --idle-return": "10m",
    "head setup --change-every": "30s",
    "head setup --always": "none",
    "head setup --sbatch-option": "none",
    "head setup --pilot-user": "the head's",
    "head setup --pilot-dir": "as root none, else one of yours below /var/tmp",
    "head setup --simulate": "real GPUs",
    **dict.fromkeys(
        (f"head {verb} --dir" for verb in ("setup", "serve", "doctor", "copy", "restore")),
        "/var/lib/nodemgr-head for root, else a directory of yours",
    ),
    **dict.fromkeys(
        (f"head {verb} --run-dir" for verb in ("serve", "word", "doctor", "metrics")),
        "/run/nodemgr-head for root, else one of yours",
    ),
    "node drain --note": "no note",
    "node join --name": "the host's name",
    "node pilot --seconds": "it must be named",
    "node pilot --grace": "it must be named",
    "node pilot --dir": "the node's own manager",
    "node pilot --simulate": "real GPUs",
    "node emptied --within": "60",
    "quota set --per-node": "as it is; at first the total",
    "demo --simulate": "the GPUs of this machine, else 2x16GiB",
    **{f"env create {option}": default for option, default in QUOTA_DEFAULTS.items()},
    **{
        f"quota set {option}": f"as it is; at first {default}"
        for option, default in QUOTA_DEFAULTS.items()
    },
    "quota set --gpus": "as it is",
    "env create --user": "root and the user of the manager",
    "env create --group": "no group",
    "quota set --user": "as it is, without --group; at first root and the user of the manager",
    "quota set --group": "as it is, without --user; at first no group",
}
"""Defaults by option, or by command and option where they differ."""


class HelpedCommand(click.Command):
    """A command whose help looks like that of a user's verb."""

    def get_help(self, ctx: click.Context) -> str:
        path = ctx.command_path.partition(" ")[2]
        return parser.help_text(
            " ".join([ctx.command_path, *self.collect_usage_pieces(ctx)]),
            inspect.cleandoc(self.help or "").split("\n\n"),
            EXAMPLES.get(path, ()),
            [row for option in self.get_params(ctx) if (row := _row(path, option, ctx))],
            self.under_headings(ctx),
        )

    def under(self, _ctx: click.Context) -> dict[str, str]:
        """The verbs that may follow, with their help."""
        return {}

    def under_headings(self, ctx: click.Context) -> dict[str, dict[str, str]]:
        return {"Verbs": self.under(ctx)}


def _row(path: str, option: click.Parameter, ctx: click.Context) -> tuple[str, str] | None:
    """An option's row in the help; None for a hidden one, and for an argument."""
    record = option.get_help_record(ctx)
    if record is None or not isinstance(option, click.Option):
        return None
    held = "" if option.is_flag else default_of(path, option)
    return record[0], parser.with_default(option.help or "", option.required, held)


def default_of(path: str, option: click.Option) -> str:
    name = max(option.opts, key=len)
    return DEFAULTS.get(f"{path} {name}") or DEFAULTS.get(name, "") or str(option.default)
