"""`nodemgr submit -- COMMAND`: have COMMAND run in an environment when its turn comes.

The job gets the working directory, the variables (on the node as `nodemgr run` composes them), the
umask and the user that this process has now. A job that the quota can never grant is refused at
once. Prints the job's id and nothing else on stdout.
"""

from __future__ import annotations

from client_plugin import units
from client_plugin.messages import prediction as prediction_messages
from client_plugin.messages import verbs as messages
from client_plugin.messages.arguments import ARGUMENT_MISSING
from client_plugin.messages.form import Notice, relayed, stated
from client_plugin.messages.ways import MEANWHILE
from client_plugin.verbs import VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import RUN_DIR, Said, Verb, VerbOption, mistake
from client_plugin.verbs.commands.submit_context import (
    WISHES,
    SubmitContext,
    find_way,
    job_arguments,
    may_be_known,
    new_key,
    wished_variables,
    wishes_of,
)
from client_plugin.verbs.launch import programs, runner
from client_plugin.verbs.launch.known_programs import compare
from client_plugin.verbs.launch.recognition import recognised
from client_plugin.ways.faults import Away, Exit, Fault, say
from client_plugin.ways.retry_timeout import RetryTimeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    from client_plugin.ways.choice import UserWay

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


def run(said: Said) -> int:
    if not said.predict:
        for option in WATCHING:
            if getattr(said, option.key) not in (None, False):
                mistake(
                    said.verb,
                    stated(
                        f"{option.names[0]} is about a command that is watched",
                        "add --predict, or leave it out",
                    ),
                )
    if said.from_file is not None:
        from client_plugin.verbs.commands import batch

        if said.predict:
            raise Fault(
                "--predict watches one command", "leave --from out, or --predict", code=Exit.USAGE
            )
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
        say(f"{job} is submitted")
        raise
    finally:
        if said.inside:
            runner.ensure(said.whom())
    return 0


def _say_earlier(earlier: Dict[str, Any]) -> None:
    message = (
        Notice("{count} earlier run{plural} of this command with other numbers: {what} filled in")
        if earlier["learned"]
        else Notice("{count} earlier run{plural} of this command: {what} filled in")
    )
    figures = []
    if "run_seconds" in earlier:
        run = units.format_duration(max(1, int(earlier["run_seconds"] * 1_000)))
        figures.append(f"an expected time of {run}")
    if "memory_bytes" in earlier:
        figures.append(f"a least GPU memory of {units.format_size(earlier['memory_bytes'])}")
    what = f"{' and '.join(figures)} {'is' if len(figures) == 1 else 'are'}"
    count = earlier["runs"]
    say(message(count=count, plural="" if count == 1 else "s", what=what))


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
        memory = units.format_size(model["memory_bytes"] or 0)
        margin = units.format_size(model["memory_margin_bytes"] or 0)
        say(
            f"predicted on {model['name']}: memory {memory} and a margin of {margin}, run time "
            f"{_run_time(model)}"
        )


def _run_time(model: Dict[str, Any]) -> str:
    if model["run_seconds"] is not None:
        return units.format_duration(int(model["run_seconds"] * 1_000))
    has_pace = model["step_seconds"] is not None
    return "unknown without the number of steps (--steps)" if has_pace else "unknown"


def _submit(way: UserWay, retry_timeout: RetryTimeout, arguments: Dict[str, Any]) -> Any:
    """The answer. One that was lost is asked for again: the key makes it the same submission."""
    try:
        return retry_timeout.outlast(lambda: way.ask("job_submit", **arguments))
    except Away as away:
        if retry_timeout.lost:
            line = MEANWHILE(line=away.message, then=messages.SUBMISSION_UNKNOWN())
            raise Fault(line, code=away.code) from None
        raise
    except KeyboardInterrupt:
        if retry_timeout.lost:
            say(messages.SUBMISSION_UNKNOWN())
        raise


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
            help='Submit every line of FILE (-: stdin): a command, or {"command": '
            '"...", "gpus": 1, "time": "2h"} with the names of these '
            "options. An option given here holds for each line that does not "
            "name it.",
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
            help="Watch COMMAND for two training steps first, as nodemgr predict does, and fill in "
            "its memory, share and time where no option names them.",
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
