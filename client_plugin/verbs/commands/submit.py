"""`nodemgr submit -- COMMAND`: have COMMAND run in an environment when its turn comes.

The job gets the working directory, the variables (on the node as `nodemgr run` composes them), the
umask and the user that this process has now. A job that the quota can never grant is refused at
once. Prints the job's id and nothing else on stdout.
"""

from __future__ import annotations

import json
import os

from client_plugin import fields, units
from client_plugin.messages import prediction as prediction_messages
from client_plugin.messages import verbs as messages
from client_plugin.messages.arguments import ARGUMENT_MISSING
from client_plugin.messages.form import relayed
from client_plugin.messages.ways import MEANWHILE
from client_plugin.prediction import closure
from client_plugin.verbs import VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import RUN_DIR, Said, Verb, VerbOption, mistake
from client_plugin.verbs.launch import programs, runner, surroundings
from client_plugin.verbs.launch.recognition import recognised
from client_plugin.verbs.launch.surroundings import refuse_half_elastic
from client_plugin.ways import choice
from client_plugin.ways.faults import Away, Exit, Fault, say
from client_plugin.ways.retry_timeout import RetryTimeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

    from client_plugin.ways.choice import UserWay

KEY_BYTES = 16
MOST_KEYS = 32
"""Of programs in one order (nodemgr/edge/api/forecast_operations.py)."""
WISHES = kinds.options_of(fields.OF_SUBMIT)
"""The resources that a job may ask for; most of their keys are arguments of the order."""
WATCHING = (
    VerbOption(
        "--steps",
        kind=kinds.count(1),
        help="With --predict: the training steps of the whole run, for its time.",
    ),
    VerbOption(
        "--limit",
        kind=kinds.DURATION,
        help="With --predict: how long to watch COMMAND at most, e.g. 2min.",
    ),
    VerbOption(
        "--unconfined",
        help="With --predict: watch it without a private view of the disk and the network.",
    ),
)
"""How --predict watches a command."""


def wishes_of(said: Said) -> Dict[str, Any]:
    """The given wishes, by the names of their fields."""
    wishes = {option.key: getattr(said, option.key) for option in WISHES}
    wishes["after"] = [job for jobs in said.after for job in jobs]
    return {
        key: value
        for key, value in wishes.items()
        if not (value is None or value is False or value == [])
    }


class SubmitContext:
    """The surroundings that all jobs of one call of `submit` share."""

    def __init__(self, way: UserWay, said: Said) -> None:
        self._way = way
        self._inside = said.inside
        self._base = surroundings.own_environ()
        self._mask = surroundings.Mask(self._base)
        self._mask.drop(self._base, new_task=True)
        self._settings = (
            {} if said.inside else surroundings.settings_of(way.directory, way.env or "")
        )
        self._environs: Dict[str, List[str]] = {}
        self.cwd = _here()
        self.umask = _umask()

    def sized(self, wished: Dict[str, Any]) -> Dict[str, Any]:
        """The arguments of an order, with the number of GPUs that the variables ask for."""
        gpus = self._mask.gpus(wished.get("gpus"))
        return wished if gpus is None else {**wished, "gpus": gpus}

    def environ(self, program: str) -> List[str]:
        """The variables of a job that runs this program, without its own wishes."""
        if program not in self._environs:
            variables = self._base
            if not self._inside:  # there the container's own mounts bring the client in
                variables = surroundings.environment(
                    variables, self._way.directory, self._settings, {}, program
                )
            self._environs[program] = [f"{name}={value}" for name, value in variables.items()]
        return self._environs[program]


def job_arguments(wishes: Dict[str, Any]) -> Dict[str, Any]:
    """The wishes as arguments of the order. Raises Fault."""
    wish = fields.wished(wishes)
    refuse_half_elastic(wish)
    found = {field.name: wish[field.name] for field in fields.ORDERED if field.name in wish}
    if "elastic" in wish:
        from client_plugin.elastic.command import leader_command

        found["leader"] = leader_command(
            [], minimum=wish["gpus"], maximum=wish["gpus_max"], checkpoint=wish.get("checkpoint")
        )
    return found


def wished_variables(arguments: Dict[str, Any], visible_as: Optional[str]) -> List[str]:
    """Variables by which the job's programs request the job's own resources."""
    wish = {**arguments, "visible_as": visible_as}
    found = {**surroundings.as_needed(wish, os.environ), **fields.variables(wish)}
    return [f"{name}={value}" for name, value in found.items()]


def new_key() -> str:
    """A key by which the manager recognises a repeated submission."""
    return os.urandom(KEY_BYTES).hex()


def run(said: Said) -> int:
    if not said.predict:
        for option in WATCHING:
            if getattr(said, option.key) not in (None, False):
                mistake(said.verb, prediction_messages.ONLY_WITH_PREDICT(option=option.names[0]))
    if said.from_file is not None:
        from client_plugin.verbs.commands import batch

        if said.predict:
            raise Fault(prediction_messages.FROM_AND_PREDICT(), Exit.USAGE)
        return batch.run(said)
    if not said.command:
        mistake(said.verb, ARGUMENT_MISSING(shown="COMMAND..."))
    wished = job_arguments(wishes_of(said))
    retry_timeout = RetryTimeout(0) if said.no_wait else RetryTimeout()
    way = find_way(said, retry_timeout)
    program = programs.program_of(said.command[0])
    around = SubmitContext(way, said)
    wished = around.sized(wished)
    arguments = {
        "argv": said.command, "cwd": around.cwd,
        "environ": around.environ(program) + wished_variables(wished, said.visible_as),
        "umask": around.umask, "key": new_key(), **wished,
    }  # fmt: skip
    if said.here:
        arguments["here"] = True
    if said.predict:
        arguments.update(_features(said))
    elif (
        may_be_known(said, wished)
        and (known := recognised(said.command, program))
        and compare(way.ask, [known])
    ):
        arguments["recognised"] = known
    answer = _submit(way, retry_timeout, arguments)
    job = answer["job"]
    if answer.get("note"):
        say(relayed(answer["note"]))
    if answer.get("forecast"):
        _say_forecast(answer["forecast"])
    if answer.get("earlier"):
        _say_earlier(answer["earlier"])
    try:
        print(job, flush=True)
    except OSError:  # a full disk, a reader that left: the job runs all the same
        say(messages.SUBMITTED(job=job))
        raise
    finally:
        if said.inside:
            runner.ensure(said.whom())
    return 0


def may_be_known(said: Said, wished: Dict[str, Any]) -> bool:
    """The elements of an array do different work, and an elastic task takes what time it gets."""
    return not (said.no_forecast or wished.keys() & {"array", "leader"})


def compare(ask: Callable[..., Any], known: List[Dict[str, Any]]) -> bool:
    """Whether the modules of earlier runs are what they were: `holds` of each program.

    A manager that does not answer now takes the job all the same. False: it does not know of
    programs, since an earlier version goes on until it is started again.
    """
    keys = list({one["key"]: None for one in known})
    found: Dict[str, bool] = {}
    for first in range(0, len(keys), MOST_KEYS):
        try:
            told = ask("programs", keys=keys[first : first + MOST_KEYS])
        except Away:
            break
        except Fault:
            return False
        holds = [closure.holds(json.loads(text)) for text in told["closures"]]
        found.update(dict.fromkeys(keys[first : first + MOST_KEYS], True))
        for key, place in told["of"].items():
            found[key] = place is not None and holds[place]
    for one in known:
        one["holds"] = found.get(one["key"], False)
    return True


def _say_earlier(earlier: Dict[str, Any]) -> None:
    message = prediction_messages.LEARNED if earlier["learned"] else prediction_messages.KNOWN
    run = units.format_duration(max(1, int(earlier["run_seconds"] * 1_000)))
    count = earlier["runs"]
    say(message(count=count, plural="" if count == 1 else "s", run=run))


def _features(said: Said) -> Dict[str, Any]:
    """The features of the command; without them the job is submitted as the user wrote it."""
    from client_plugin.verbs.launch.watching import watched_findings

    try:
        found = watched_findings(said.command, said.limit, not said.unconfined, said.steps or 0)
    except Fault as fault:
        say(prediction_messages.SUBMITTED_WITHOUT(line=fault.message))
        return {}
    for note in found.notes:
        say(note)
    if found.features is None:
        say(prediction_messages.SUBMITTED_WITHOUT(line=found.reason))
        return {}
    return {"features": found.features}


def _say_forecast(forecast: Dict[str, Any]) -> None:
    """One line for each GPU model."""
    for model in forecast["models"]:
        say(
            prediction_messages.PREDICTED(
                gpu=model["name"],
                memory=units.format_size(model["memory_bytes"] or 0),
                margin=units.format_size(model["memory_margin_bytes"] or 0),
                run=_run_time(model),
            )
        )


def _run_time(model: Dict[str, Any]) -> str:
    if model["run_seconds"] is not None:
        return units.format_duration(int(model["run_seconds"] * 1_000))
    has_pace = model["step_seconds"] is not None
    return prediction_messages.UNKNOWN_RUN_TIME() if has_pace else "unknown"


def find_way(said: Said, retry_timeout: RetryTimeout) -> UserWay:
    """The way to the environment of the jobs. Raises Fault."""
    way = retry_timeout.outlast(lambda: choice.users_way(said.whom()))
    if said.inside:
        retry_timeout.outlast(lambda: runner.check(way))
    return way


def _submit(way: UserWay, retry_timeout: RetryTimeout, arguments: Dict[str, Any]) -> Any:
    """The answer. One that was lost is asked for again: the key makes it the same submission."""
    try:
        return retry_timeout.outlast(lambda: way.ask("job_submit", **arguments))
    except Away as away:
        if retry_timeout.lost:
            line = MEANWHILE(line=away.message, then=messages.SUBMISSION_UNKNOWN())
            raise Fault(line, away.code) from None
        raise
    except KeyboardInterrupt:
        if retry_timeout.lost:
            say(messages.SUBMISSION_UNKNOWN())
        raise


def _umask() -> int:
    """There is no way to read it but to set it."""
    os.umask(mask := os.umask(0o077))
    return mask


def _here() -> str:
    """The working directory as the shell calls it, where that is the same one."""
    named = os.environ.get("PWD", "")
    try:
        real = os.getcwd()
    except OSError:
        raise Fault(messages.NO_WORKING_DIRECTORY()) from None
    try:
        return named if named.startswith("/") and os.path.samefile(named, real) else real
    except OSError:
        return real


VERB = Verb(
    "submit",
    VERBS["submit"],
    run,
    (
        VerbOption("--env", kind=kinds.ENV, help="The environment to run in."),
        *WISHES,
        VerbOption(
            "--from",
            kind=kinds.FILE,
            key="from_file",
            metavar="FILE",
            help=(
                'Submit every line of FILE (-: stdin): a command, or {"command": '
                '"...", "gpus": 1, "time": "2h"} with the names of these '
                "options. An option given here holds for each line that does not "
                "name it."
            ),
        ),
        VerbOption(
            "--here",
            help="On a node of a cluster: queue on this node, not at the head.",
        ),
        VerbOption(
            "--no-wait",
            help=(
                "Fail at once if the manager is away (without it: wait for the manager up to 30 s)."
            ),
        ),
        VerbOption(
            "--predict",
            help=(
                "Watch COMMAND for two training steps first, as nodemgr predict does, and fill in "
                "its memory, share and time where no option names them."
            ),
        ),
        *WATCHING,
        VerbOption(
            "--no-forecast",
            help="Fill in nothing from earlier runs of COMMAND, and keep nothing of this one.",
        ),
        RUN_DIR,
        VerbOption("command", rest=True),
    ),
    text="Has COMMAND run in environment ENV when its turn comes, as you, in this directory, "
    "with these variables and this umask. It finds "
    "nothing to read on stdin.\n\nPrints the job's id. nodemgr queue shows where it "
    "waits and why, nodemgr logs what it wrote, nodemgr "
    "wait ends with its exit code.\n\nWith --from it prints an id or an error for each "
    "line, in order, and ends with 1 if one failed. A "
    "line is split into words as a shell does it, and given to no shell; empty lines and "
    "lines that begin with # are skipped.",
)
