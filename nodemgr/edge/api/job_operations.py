"""The verbs about jobs and queues.

Knows: the event or view that answers each. Must not know: sockets, how a job is run.

The kernel identifies a user. A user acts on the environment of the socket; jobs of other
environments are reported as absent. An administrator acts on all environments. A job is submitted
only over a client socket, because only there its owner is known. The job runs as its owner, with
no other rights, in the same place: on the node, or in the owner's container.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from client_plugin import fields
from client_plugin.messages.form import relayed, stated
from client_plugin.units import format_duration, format_size
from client_plugin.ways.nearest import did_you_mean
from nodemgr.core.forecast import features as feature_form
from nodemgr.core.forecast.earlier_runs import with_key
from nodemgr.core.forecast.samples import SampleOwner
from nodemgr.core.lifecycle import job_actions, queue_settings
from nodemgr.core.model import array_rows, effects, events, job_ids
from nodemgr.core.model.entities import (
    DenyCode,
    Ended,
    Job,
    JobPayload,
    JobSpec,
    JobState,
    QueueRow,
    RunSpec,
    TaskClass,
)
from nodemgr.core.model.values import replace
from nodemgr.core.scheduler import admission, reasons
from nodemgr.core.state import host_use
from nodemgr.core.views import job_rows
from nodemgr.edge.api import (
    bulk_actions,
    forecast_operations,
    run_specs,
)
from nodemgr.edge.api import job_arguments as kinds
from nodemgr.edge.api.forecast_operations import ForecastOperations
from nodemgr.edge.api.job_views import JobViews
from nodemgr.edge.api.job_waits import Waits
from nodemgr.edge.api.output_reads import LOG_READ_NS, OutputReads
from nodemgr.edge.api.session_hosts import NODE, LaunchHosts
from nodemgr.edge.api.task_operations import to_release
from nodemgr.edge.api.verb_table import (
    ADMIN,
    CHANGES,
    ENV,
    EVERYONE,
    Speaker,
    verb,
)
from nodemgr.edge.api.views import internal_fault
from nodemgr.edge.clients.client_server import Connection
from nodemgr.edge.clients.client_sessions import Session
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.engine.submission_batches import submission_units
from nodemgr.edge.kernel.processes import group_id, known_user_name, user_id
from nodemgr.edge.rpc.cost import MAX_NAMED, NAMES_AT_ONCE, STEP_UNITS, UNIT_NS, Units
from nodemgr.edge.rpc.operation import (
    Argument,
    Later,
    OperationError,
    access,
    check,
    env_name,
    flag,
    integer,
    members,
    named,
    of_field,
    optional,
)
from nodemgr.edge.rpc.turns import Work, in_turns
from nodemgr.messages import doctor as found
from nodemgr.messages import jobs as messages

QUOTA_CODES = frozenset({
    DenyCode.OVER_QUOTA, DenyCode.MORE_THAN_NODE, DenyCode.MEMORY_ABOVE_LIMIT, DenyCode.NO_GPU,
    DenyCode.CLASS_ABOVE_LIMIT, DenyCode.COMPUTE_ABOVE_LIMIT,
    DenyCode.UNKNOWN_ENV, DenyCode.FORBIDDEN_USER,
})  # fmt: skip
CODES = {
    DenyCode.STORE_FULL: "store", DenyCode.UNKNOWN_JOB: "not_found",
    DenyCode.UNKNOWN_QUEUE: "not_found", DenyCode.BAD_REQUEST: "usage",
}  # fmt: skip
"""Error codes of a refused submission; a code outside both tables gives "refused"."""


SUBMISSION = {
    "argv": Argument(kinds.argv, required=True),
    "cwd": Argument(kinds.directory, required=True),
    "environ": Argument(kinds.environ, required=True),
    "umask": Argument(kinds.umask),
    "key": Argument(kinds.key, required=True),
    "leader": Argument(kinds.argv),
    **{row.name: of_field(row, kinds.OF_KIND, is_wish=True) for row in fields.ORDERED},
    "features": forecast_operations.FEATURES,
    "recognised": forecast_operations.RECOGNISED,
}
FOUND_AROUND = ("cwd", "environ", "umask")
"""Arguments shared by all jobs of one `job_submit_many`."""
ONE_OF_MANY = {
    **{name: row for name, row in SUBMISSION.items() if name not in FOUND_AROUND},
    "variables": Argument(kinds.environ),
}
"""Arguments of each job; `variables` add to the shared environment."""
MANY = {
    **{name: SUBMISSION[name] for name in FOUND_AROUND},
    "jobs": Argument(kinds.submissions, required=True),
}
READ_UNITS = STEP_UNITS // 2
"""Of submissions read in one turn: a charge for a single one leaves out what many cost together."""
LOG_PIECE = {
    "attempt": Argument(optional(kinds.number)),
    "offset": Argument(kinds.cursor),
    "wait": Argument(flag),
}
MAX_LEASES = 1_000
"""In one answer, which is made in the thread of the past."""
PAYLOAD = ("argv", "cwd", "environ")
"""Arguments that only the job's process needs, named as in JobPayload."""
ONE_JOB = {"job": Argument(kinds.job, required=True)}
SOME = {"job": Argument(kinds.named, required=True)}
"""A job, an array, or the elements of one that wait."""
WAITER = {"job": Argument(kinds.waiter, required=True)}
"""Those, or an interactive request."""
BY_ENV = {"env": Argument(env_name)}
SINCE = {**BY_ENV, "since_wall_ns": Argument(integer(0, 2**63 - 1))}
LIMIT = {"limit": Argument(kinds.limit)}
QUEUE = {"queue": Argument(kinds.queue, required=True)}
QUEUE_ROW = {
    **QUEUE,
    **{row.name: of_field(row, {}) for row in fields.OF_QUEUE},
    **members(user_id, group_id),
}
LEASES = {
    **SINCE,
    "until_wall_ns": Argument(integer(0, 2**63 - 1)),
    "before": Argument(optional(kinds.cursor)),
    "limit": Argument(integer(1, MAX_LEASES)),
}


class JobOperations:
    """The verbs, on a daemon."""

    def __init__(
        self,
        daemon: Daemon,
        views: JobViews,
        launch_hosts: LaunchHosts,
        admin_group: str,
        forecasts: ForecastOperations,
    ) -> None:
        """`admin_group`: its members are administrators."""
        self._daemon = daemon
        self._admin_group = admin_group
        self._views = views
        self._launch_hosts = launch_hosts
        self.waits = Waits(daemon.state)
        daemon.jobs.on_final.append(self.waits.final)
        self.logs = OutputReads(daemon)
        self._give_up: dict[int, Callable[[], None]] = {}
        """Cancels the wait of each connection."""
        self._forecasts = forecasts
        self._matching = bulk_actions.Matching(daemon)
        self._events: Mapping[str, Callable[[Speaker, str], Any]] = {
            "withdraw": self._withdrawal, "hold": self._job_event(events.HoldJob),
            "free": self._unholding, "requeue": self._requeueing, "release": self._release,
        }  # fmt: skip
        """Builds the event of each bulk action for one id."""

    def closed(self, session: Session) -> None:
        """Cancels the session's waits."""
        self.logs.closed(session)
        give_up = self._give_up.pop(session.connection, None)
        if give_up is not None:
            give_up()

    def close(self) -> None:
        self.logs.close()

    # -- submitting --

    @verb("job_submit", ENV, SUBMISSION, changes=True, cost_ns=0)
    def _submit(self, who: Speaker, given: dict[str, Any]) -> Later:
        _spend(who, _read_units(given))
        submission, told = self._submission(who, given)

        def answer(answered: effects.SubmitAnswered) -> Any:
            outcome = _submitted(answered)
            if isinstance(outcome, OperationError):
                return outcome
            return {**outcome, **told, **self._note(submission)}

        return Later(
            lambda reply: self._take(who, submission, lambda answered: reply(answer(answered)))
        )

    @verb(
        "job_submit_many",
        ENV,
        MANY,
        changes=True,
        steps=((Units.SUBMIT, Units.SUBMIT.within()),),
    )
    def _submit_many(self, who: Speaker, given: dict[str, Any]) -> Later:
        """Sends one answer: for each job, in order, its id or the reason for refusal."""

        def begin(reply: Callable[[Any], None]) -> None:
            in_turns(
                self._daemon.loop,
                self._take_many(who, given, reply),
                lambda _: None,
                lambda error: reply(internal_fault(error)),
                who.took,
            )

        return Later(begin)

    def _take_many(
        self, who: Speaker, given: dict[str, Any], reply: Callable[[Any], None]
    ) -> Work[None]:
        rows, wanted = yield from self._read_many(who, given)
        if not wanted:
            reply({"jobs": rows})
        left = [len(wanted)]

        def answer(place: int, answered: effects.SubmitAnswered) -> None:
            outcome = _submitted(answered)
            if isinstance(outcome, OperationError):
                rows[place] = _refused(outcome)
            else:
                rows[place] |= outcome
            left[0] -= 1
            if left[0] == 0:
                notes = [note for _, submission in wanted if (note := self._note(submission))]
                reply({"jobs": rows, **(notes[0] if notes else {})})

        for count, (place, submission) in enumerate(wanted):
            if count % Units.READ.within() == 0:
                yield
            self._take(who, submission, partial(answer, place))

    def _read_many(
        self, who: Speaker, given: dict[str, Any]
    ) -> Work[tuple[list[dict[str, Any]], list[tuple[int, events.Submission]]]]:
        """The rows of the answer, as far as they are known, and the submissions by their row."""
        rows: list[dict[str, Any]] = []
        wanted: list[tuple[int, events.Submission]] = []
        jobs, left = given.pop("jobs"), READ_UNITS
        yield  # the order itself has taken a turn to be read
        for job in jobs:
            if left < (units := _read_units(job)):
                yield
                left = READ_UNITS
            left -= units
            _spend(who, units)
            rows.append({})
            try:
                own = check(ONE_OF_MANY, job)
                environ = (*given["environ"], *own.pop("variables", ()))
                submission, told = self._submission(who, {**given, **own, "environ": environ})
                rows[-1] = {name: told[name] for name in told.keys() & {"earlier"}}
                wanted.append((len(rows) - 1, submission))
            except OperationError as error:
                rows[-1] = _refused(error)
        return rows, wanted

    def _take(
        self,
        who: Speaker,
        submission: events.Submission,
        answer: Callable[[effects.SubmitAnswered], None],
    ) -> None:
        assert who.session is not None
        _spend(who, submission_units(submission))
        self._daemon.submissions.submit(submission, answer, who.session.took)

    def _submission(
        self, who: Speaker, given: dict[str, Any]
    ) -> tuple[events.Submission, dict[str, Any]]:
        """The submission, and what its answer tells of a forecast. Raises OperationError."""
        assert who.env is not None
        self._check_queue(given.get("priority"))
        self._check_right(who, given.get("priority"))
        uid, gid, place = self._submitter(who)
        features, recognised = given.pop("features", None), given.pop("recognised", None)
        given["environ"] = with_key(given["environ"], recognised)
        command, leader = given["argv"], given.pop("leader", ())
        given["argv"] = leader + command
        given["key"] = _own_key(given["key"], uid, given["argv"])
        payload = JobPayload(
            **{name: given.pop(name) for name in PAYLOAD},
            features="" if features is None else feature_form.as_text(features),
        )
        spec = JobSpec(
            "",
            _user_of_job(uid),
            uid,
            gid,
            **{name: given.pop(name) for name in ("umask",) if name in given},
        )
        gpus = given.get("gpus")
        run = run_specs.take(given, command, place, is_elastic=bool(leader))
        told: dict[str, Any] = {}
        env = self._daemon.state.envs.get(who.env)
        if recognised is not None and env is not None:
            run, told = self._forecasts.fill_again(
                who.env, recognised, run, env.quota, is_default=gpus is None
            )
        if features is not None and env is not None and gpus != 0:
            run, percent, told["forecast"] = self._forecasts.fill(
                SampleOwner(who.env, who.user), features, run, env.quota,
                given.get("compute_percent"),
            )  # fmt: skip
            given = {**given, "compute_percent": percent}
        wished: dict[str, Any] = {"priority": None, **given}
        wished["name"] = given.get("name") or kinds.name_of(command[0])
        submission = events.Submission(
            ref=0,
            env=who.env,
            spec=spec,
            payload=payload,
            by=who.name,
            run=run,
            is_default=gpus is None,
            **wished,
        )
        return submission, told

    def _note(self, submission: events.Submission) -> dict[str, str]:
        """A line about wishes of the job that do not hold as they were named."""
        run, lines = submission.run, list[str]()
        lost = self._daemon.jobs.factory.no_limits(run.place)
        if lost is not None and lost.are_named_by(run):
            lines.append(lost.of_jobs())
        env = self._daemon.state.envs.get(submission.env)
        yields = (
            env is not None
            and (submission.task_class or env.quota.task_class) is TaskClass.BEST_EFFORT
        )
        if yields and run.signal is not None and run.signal.before_ms > fields.MAX_YIELD_MS:
            most = format_duration(fields.MAX_YIELD_MS)
            lines.append(
                f"where a latency-sensitive task needs its GPU, the job has {most} after its "
                "--signal"
            )
        if yields and run.signal is None and (why := self._unsuspendable(submission)):
            lines.append(
                "where a latency-sensitive task needs its GPU, the job is ended and begins anew, "
                f"since {why}: have it save its state, at a --signal or by itself"
            )
        return {"note": relayed("; ".join(lines))} if lines else {}

    def _unsuspendable(self, submission: events.Submission) -> str | None:
        """Why the job could not be suspended on this node, however little else runs there."""
        run, state = submission.run, self._daemon.state
        quota = state.envs[submission.env].quota
        gpus = admission.default_gpus(state, quota) if submission.is_default else run.gpus
        if not gpus or (run.gpu_range is not None and run.gpu_range.is_elastic):
            return None
        if (why := self._daemon.suspensions.hindrance()) is not None:
            return why
        need_bytes = gpus * (run.memory_bytes or admission.most_memory(state, quota))
        most_bytes = self._daemon.suspensions.most_bytes()
        if most_bytes is None or need_bytes <= most_bytes:
            return None
        need, most = format_size(need_bytes), format_size(most_bytes)
        return f"its GPU memory (up to {need}) does not fit in the host memory ({most})"

    def _submitter(self, who: Speaker) -> tuple[int, int, str]:
        """Returns the caller's uid and gid, which the job runs as, and its place.

        Raises OperationError."""
        place, session = self._launch_hosts.of(who.session), who.session
        assert isinstance(session, Connection)
        return session.identity.uid, session.identity.gid, place

    @verb("job_place", ENV)
    def _place(self, who: Speaker, _given: dict[str, Any]) -> dict[str, Any]:
        """Returns where the caller's jobs run, and whether jobs there wait for a launcher."""
        place, state = self._launch_hosts.of(who.session), self._daemon.state
        waits = (
            place != NODE
            and not state.is_up(place)
            and any(job.run.place == place for job in state.jobs.values())
        )
        return {"place": place, "waits": waits}

    @verb("run_begin", ENV, run_specs.LIMITS)
    def _run_begin(self, who: Speaker, given: dict[str, Any]) -> Later:
        """Limits the caller's own process, where its node can. Raises OperationError."""
        state, session, env = self._daemon.state, who.session, who.env or ""
        run = RunSpec("", 0, None, None, **given)
        bound = host_use.short_of(state, env, run, when_alone=True)
        if bound is not None:
            raise OperationError(relayed(reasons.host_above(run, bound)), code="quota")

        def begin(reply: Callable[[Any], None]) -> None:
            def then(why: str | None) -> None:
                note = self._daemon.jobs.note_of_command(run, why)
                reply({} if note is None else {"note": note})

            if isinstance(session, Connection) and self._launch_hosts.is_on_node(session):
                self._daemon.jobs.enter(env, session.key, run, then)
            else:
                then(found.LIMITED_BY_CONTAINER())

        return Later(begin)

    # -- which queue --

    def _check_right(self, who: Speaker, name: str | None) -> None:
        """Checks the caller's right to this queue (None: no queue). Raises OperationError."""
        refusal = None if name is None else self._queue_refusal(who, name)
        if refusal is not None:
            raise OperationError(relayed(refusal), code="quota")

    def _queue_refusal(self, who: Speaker, name: str) -> str | None:
        state = self._daemon.state
        row, env = queue_settings.rows(state).get(name), state.envs.get(who.env or "")
        if row is None or env is None or name == env.quota.priority or self._is_admin(who):
            return None
        if (row.users or row.groups) and not _is_named(row, who.session):
            return reasons.queue_of_others(row)
        return queue_settings.above(state, env.name, env.quota, name)

    def _is_admin(self, who: Speaker) -> bool:
        """Also root, the manager's user, the admin group on an env's socket; not container root."""
        if who.env is None or self._launch_hosts.is_root(who.session):
            return True
        session = who.session
        return (
            isinstance(session, Connection)
            and group_id(self._admin_group) in session.identity.gids
            and self._launch_hosts.is_on_node(session)
        )

    # -- orders on what there is --

    @verb(
        "job_orders",
        ENV | ADMIN,
        bulk_actions.ARGUMENTS,
        changes=True,
        steps=(
            (Units.NAMES, 1 + MAX_NAMED // NAMES_AT_ONCE),
            (Units.CHANGE, 8),
            (Units.FIND, 8),
        ),
    )
    def _many(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        """A page of the ids that a filter matches, or an order to ids: what fits one step."""
        speaker = who.session.user if who.session is not None else None
        asked = bulk_actions.wanted(given, who.env, speaker)
        if asked is None:
            return self._ordered(who, given)
        _spend(who, min(STEP_UNITS, Units.MATCH * self._daemon.state.living.rows(asked.env or "")))
        page = self._matching.page(given["order"], asked, given.get("after"))
        return {"schema_version": 1, "matched": page.ids, "after": page.after}

    def _ordered(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        """A row for each id that was reached, and where the order goes on."""
        names = given["jobs"]
        _, at, behind = given.get("after") or ("ids", 0, bulk_actions.FIRST)
        who = who._replace(past=self._past(names[at : at + Units.FIND.within()]))
        rows: dict[str, dict[str, Any]] = {}
        found: dict[str, bulk_actions.OneAction] = {}
        left = STEP_UNITS - Units.NAMES * (1 + len(names) // NAMES_AT_ONCE)
        while at < len(names) and left >= 2 * Units.CHANGE:
            name, room = names[at], left // Units.CHANGE
            left -= Units.FIND
            size = len(self._daemon.state.elements.get(name, ()))
            if behind == bulk_actions.FIRST and size <= room:
                if self._judge(who, given, name, rows, found):
                    left -= Units.CHANGE * max(1, size)
            elif behind == bulk_actions.FIRST and size <= Units.CHANGE.within():
                break  # it fits the next step
            else:
                some = bulk_actions.few_of(self._daemon.state, name, behind, room) if size else []
                for one in some:
                    self._judge(who, {**given, "skip": True}, one, rows, found)
                left -= Units.CHANGE * room
                if len(some) == room:
                    behind = job_ids.listed(some[-1])[1]
                    continue
            at, behind = at + 1, bulk_actions.FIRST
        _spend(who, STEP_UNITS - left)
        after = f"ids:{at}.{behind}" if at < len(names) else None
        bulk_actions.carry_out(self._daemon, found, rows, goes_on=after is not None)
        if after is None and given.get("after") and not found:
            self._daemon.journal.sync()  # the parts before this one
        return {"schema_version": 1, "jobs": list(rows.values()), "after": after}

    def _past(self, names: Sequence[str]) -> Mapping[str, Ended]:
        """The ended jobs among them, in one query of the store."""
        state = self._daemon.state
        gone = [
            name
            for name in names
            if name.startswith("j") and job_rows.any_living(state, name) is None
        ]
        return self._daemon.journal.ended_each(gone) if gone else {}

    def _judge(
        self,
        who: Speaker,
        given: Mapping[str, Any],
        name: str,
        rows: dict[str, dict[str, Any]],
        found: dict[str, bulk_actions.OneAction],
    ) -> bool:
        """Fills in the row of one id and the event for it; True: there is one."""
        order = given["order"]
        if order == "withdraw" and self._is_stray(who, name):
            self._daemon.jobs.withdraw_unknown(name, f"{who.name} withdrew it")
            rows[name] = {"job": name, "error": None}
            return True
        ended = (who.past or {}).get(name)
        size = bulk_actions.size(self._daemon.state, name, ended)
        try:
            found[name] = self._sensible(self._events[order](who, name))
            rows[name] = {"job": name, "error": None, "jobs": size}
            return True
        except OperationError as error:
            if given.get("again") and bulk_actions.is_done(self._daemon.state, order, name, ended):
                rows[name] = {"job": name, "error": None, "jobs": size}
            elif not given.get("skip"):
                rows[name] = {"job": name, "error": str(error), "code": error.code}
        return False

    def _sensible(self, event: bulk_actions.OneAction) -> bulk_actions.OneAction:
        """Raises OperationError if the event is inadmissible."""
        if (
            not isinstance(event, events.ReleaseTask)
            and (why := job_actions.objection(self._daemon.state, event)) is not None
        ):
            raise OperationError(relayed(why), code="refused")
        return event

    def _order(
        self, who: Speaker, job_id: str, kind: Callable[..., job_actions.JobAction], **more: Any
    ) -> Any:
        """Acts on a living job, or on all living elements of an array."""
        self._check_lives(who, job_id)
        wall_ns = self._daemon.clock.wall_ns()
        return self._to_each(
            who,
            job_id,
            lambda one: kind(one, **more, by=who.name, wall_ns=wall_ns),
            is_reversed=bool(more.get("first")),
        )

    def _to_each(
        self,
        who: Speaker,
        name: str,
        event: Callable[[str], bulk_actions.OneAction],
        *,
        is_reversed: bool = False,
    ) -> Any:
        """Acts on the job, or on the elements of an array: of a long one in turns of the loop.

        `is_reversed`: from the last element on, as they go to the front of a queue.
        """
        size = len(self._daemon.state.elements.get(name, ()))
        _spend(who, Units.CHANGE * max(1, size))
        if size <= Units.CHANGE.within():
            self._do(event(name))
            return {"job": name}
        work = self._turns(who, name, event, self._in_reverse(name) if is_reversed else None)
        return Later(
            lambda reply: in_turns(
                self._daemon.loop, work, reply, lambda error: reply(internal_fault(error)), who.took
            )
        )

    def _in_reverse(self, name: str) -> list[str]:
        size = len(self._daemon.state.elements[name])
        return bulk_actions.few_of(self._daemon.state, name, bulk_actions.FIRST, size)[::-1]

    def _turns(
        self,
        who: Speaker,
        name: str,
        event: Callable[[str], bulk_actions.OneAction],
        listed: list[str] | None,
    ) -> Work[Any]:
        """`listed`: the elements in the order of the work; None: as they are, found as it goes."""
        most, behind = Units.CHANGE.within(), bulk_actions.FIRST
        done, refused = False, _no_job(who, name)
        while True:
            if listed is not None:
                some, listed = listed[:most], listed[most:]
            elif name in self._daemon.state.elements:
                some = bulk_actions.few_of(self._daemon.state, name, behind, most)
            else:
                some = []  # the last one has ended
            good: dict[str, bulk_actions.OneAction] = {}
            for one in some:
                behind = job_ids.listed(one)[1]
                try:
                    good[one] = self._sensible(event(one))
                except OperationError as error:
                    refused = error
            bulk_actions.carry_out(self._daemon, good, {})
            done = done or bool(good)
            if len(some) < most:
                break
            yield
        if not done:
            raise refused
        return {"job": name}

    def _do(
        self,
        event: job_actions.JobAction | events.ReleaseTask | events.SetQueue | events.RemoveQueue,
    ) -> None:
        state = self._daemon.state
        if isinstance(event, (events.SetQueue, events.RemoveQueue)):
            objection = queue_settings.objection(state, event)
        elif isinstance(event, events.ReleaseTask):
            objection = None
        else:
            objection = job_actions.objection(state, event)
        if objection is not None:
            raise OperationError(relayed(objection), code="refused")
        self._daemon.submit_or_refuse(event)

    def _lives(self, who: Speaker, job_id: str) -> bool:
        """Returns whether the id names a living job that the caller may access."""
        job = job_rows.any_living(self._daemon.state, job_id)
        return job is not None and who.env in (None, job.env)

    def _ended(self, who: Speaker, job_id: str) -> Ended:
        """The ended job of this id. Raises OperationError if the caller may see none."""
        ended = self._past_of(job_id) if who.past is None else who.past.get(job_id)
        if ended is None or who.env not in (None, ended.job.env):
            raise _no_job(who, job_id)
        return ended

    def _past_of(self, job_id: str) -> Ended | None:
        """An ended job; of an array those that ended within its row, else the first element."""
        return self._daemon.journal.ended_each([job_id]).get(job_id)

    def _check_lives(self, who: Speaker, job_id: str) -> None:
        if self._lives(who, job_id):
            return
        ended = self._ended(who, job_id)
        state, again = ended.job.state.value, ended.job.job_id
        if self._is_stored(ended):
            raise OperationError(
                f"{job_id} has ended ({state})",
                f"run it again with `nodemgr queue requeue {again}`",
                "refused",
            )
        raise OperationError(
            f"{job_id} has ended ({state})", "to run it again, submit it again", "refused"
        )

    def _is_stored(self, ended: Ended) -> bool:
        """Returns whether the store has its command and variables."""
        return bool(self._daemon.journal.directories((ended.job.spec_id,)))

    def _job_event(
        self, kind: Callable[..., job_actions.JobAction]
    ) -> Callable[[Speaker, str], Any]:
        def event(who: Speaker, job_id: str) -> job_actions.JobAction:
            self._check_lives(who, job_id)
            return kind(job_id, by=who.name, wall_ns=self._daemon.clock.wall_ns())

        return event

    def _unholding(self, who: Speaker, job_id: str) -> events.UnholdJob:
        """Check the right to the queue again, as `queue move` does.

        The user may have lost it while the job was held.
        """
        self._check_lives(who, job_id)
        event = events.UnholdJob(job_id, by=who.name, wall_ns=self._daemon.clock.wall_ns())
        if job_actions.objection(self._daemon.state, event) is None:
            held = (
                job
                for job in job_actions.living(self._daemon.state, job_id)
                if job.state is JobState.HELD
            )
            for queue in dict.fromkeys(job.priority for job in held):
                self._check_right(who, queue)
        return event

    @verb("job_hold", ENV | ADMIN, SOME, changes=True, steps=CHANGES)
    def _hold(self, who: Speaker, given: dict[str, Any]) -> Any:
        return self._order(who, given["job"], events.HoldJob)

    @verb("job_free", ENV | ADMIN, SOME, changes=True, steps=CHANGES)
    def _unhold(self, who: Speaker, given: dict[str, Any]) -> Any:
        self._check_lives(who, given["job"])
        return self._to_each(who, given["job"], lambda one: self._unholding(who, one))

    def _withdrawal(self, who: Speaker, job_id: str) -> events.WithdrawJob | events.ReleaseTask:
        """Also withdraws an interactive request, which is then refused."""
        request = self._daemon.state.requests.get(job_id)
        wall_ns = self._daemon.clock.wall_ns()
        if request is not None:
            if who.env not in (None, request.env):
                raise _no_job(who, job_id)
            if request.job_id is None:
                return events.ReleaseTask(job_id, who.name, wall_ns, env=who.env)
            job_id = request.job_id
        self._check_lives(who, job_id)
        return events.WithdrawJob(job_id, who.name, wall_ns)

    def _release(self, who: Speaker, row_id: str) -> events.ReleaseTask:
        """Releases a lease or a waiting request."""
        row_id = to_release(self._daemon.state, row_id, who.env)
        return events.ReleaseTask(row_id, who.name, self._daemon.clock.wall_ns(), env=who.env)

    @verb("job_withdraw", EVERYONE, WAITER, changes=True, steps=CHANGES)
    def _withdraw(self, who: Speaker, given: dict[str, Any]) -> Any:
        job_id = given["job"]
        if self._is_stray(who, job_id):
            self._daemon.jobs.withdraw_unknown(job_id, f"{who.name} withdrew it")
            return {"job": job_id}
        return self._to_each(who, job_id, lambda one: self._withdrawal(who, one))

    def _is_stray(self, who: Speaker, job_id: str) -> bool:
        """Returns whether an attempt unknown to the store runs under this id.

        Administrators only: its environment is unknown."""
        return who.env is None and self._daemon.jobs.is_unknown(job_id)

    @verb(
        "job_move",
        ENV | ADMIN,
        {**SOME, "queue": Argument(optional(kinds.queue)), "first": Argument(flag)},
        changes=True,
        steps=CHANGES,
    )
    def _move(self, who: Speaker, given: dict[str, Any]) -> Any:
        queue, first = given.get("queue"), given.get("first", False)
        if (queue is None) is not first:
            raise OperationError(
                "the new place of the job is missing, or given twice",
                "name a queue (for its end) or --first (for the front of the job's own queue)",
            )
        if first and who.env is not None:
            raise OperationError(
                "the front of a queue is for administrators: root, the manager's user, the group "
                "nodemgr",
                "ask one of them, or name a queue",
                "refused",
            )
        self._check_queue(queue)
        self._check_lives(who, given["job"])
        self._check_right(who, queue)
        return self._order(who, given["job"], events.MoveJob, queue=queue, first=first)

    def _requeueing(
        self, who: Speaker, job_id: str, *, no_after: bool = False
    ) -> events.RequeueJob:
        """Restarts a living job at the end of its queue.

        An administrator's requeue keeps its place, after a pause. An ended job waits again under
        the same id; `no_after`: not for the jobs for which it still waited when it ended.
        """
        if self._lives(who, job_id):
            return events.RequeueJob(
                job_id, who.name, self._daemon.clock.wall_ns(), by_admin=who.env is None
            )
        ended = self._ended(who, job_id)
        if ended.job.job_id != job_id:
            raise OperationError(
                f"{job_id} is an array that has ended",
                f"name the element that is to run again ({ended.job.job_id})",
                "refused",
            )
        if not self._is_stored(ended):
            raise OperationError(
                f"{job_id} ended so long ago that its command and variables are not kept",
                f"submit it again ({ended.job.run.command})",
                "refused",
            )
        job = replace(ended.job, after=()) if no_after else ended.job
        self._check_awaited(who, job)
        if self._queue_refusal(who, job.priority) is not None:
            # moved by an admin, or limit lowered
            job = replace(job, priority=self._daemon.state.envs[job.env].quota.priority)
        now_ns, row = self._daemon.clock.wall_ns(), self._daemon.journal.ended_row(job_id)
        return events.RequeueJob(job_id, who.name, now_ns, job, ended.spec, row=row)

    def _check_awaited(self, who: Speaker, job: Job) -> None:
        """Refuses a job that would wait for one that cannot end well any more."""
        for name in job.after:
            if self._lives(who, name):
                continue
            ended = self._daemon.journal.ended_states(job.env, (name,)).values()
            lost = next((state for state in ended if state is not JobState.DONE), None)
            if lost is None and ended:
                continue
            how = "is not known any more" if lost is None else f"is {lost.value}"
            raise OperationError(
                f"{job.job_id} waits for {name}, which {how}",
                f"requeue {name} first, or `nodemgr queue requeue {job.job_id} --no-after`",
                "refused",
            )

    @verb(
        "job_requeue",
        ENV | ADMIN,
        {**ONE_JOB, "no_after": Argument(flag)},
        changes=True,
        steps=CHANGES,
    )
    def _requeue(self, who: Speaker, given: dict[str, Any]) -> Any:
        no_after = given.get("no_after", False)
        return self._to_each(
            who, given["job"], lambda one: self._requeueing(who, one, no_after=no_after)
        )

    # -- queues --

    @verb("queue_create", ADMIN, QUEUE_ROW, changes=True)
    def _queue_create(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        """Omitted settings keep their values."""
        name = given.pop("queue")
        row = queue_settings.rows(self._daemon.state).get(name)
        if row is None and "rank" not in given:
            raise OperationError(
                f"queue {name} is new and has no rank",
                "name its rank (--rank N; high has 300, normal 200, low 100)",
            )
        before = row or QueueRow(name, given["rank"])
        row = replace(before, **named(before, given))
        self._do(events.SetQueue(row, who.name, self._daemon.clock.wall_ns()))
        return {"queue": name, **queue_settings.settings(row), **access(before, row)}

    def _check_queue(self, name: str | None) -> None:
        """Checks that the queue exists (None: no queue). Raises OperationError."""
        known = queue_settings.rows(self._daemon.state)
        if name is not None and name not in known:
            raise OperationError(reasons.no_queue(name, known, did_you_mean(name, known)))

    @verb("queue_rm", ADMIN, QUEUE, changes=True)
    def _queue_rm(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        self._check_queue(given["queue"])
        self._do(events.RemoveQueue(given["queue"], who.name, self._daemon.clock.wall_ns()))
        return {"queue": given["queue"]}

    # -- reading --

    @verb(
        "queue",
        EVERYONE,
        {**BY_ENV, "after": Argument(optional(kinds.cursor_at)), **LIMIT},
        steps=((Units.ROW, Units.ROW.within()),),
    )
    def _queue(self, who: Speaker, given: dict[str, Any]) -> Later:
        after, limit = given.get("after") or job_rows.BEGINNING, given.get("limit", kinds.MAX_ROWS)
        scope = who.scope(given)
        return Later(lambda reply: self._views.queue(scope, after, limit, reply, who.took))

    @verb("history", EVERYONE, {**SINCE, "before": Argument(optional(kinds.cursor)), **LIMIT})
    def _history(self, who: Speaker, given: dict[str, Any]) -> Later:
        since_wall_ns, before, limit = (
            given.get("since_wall_ns", 0),
            given.get("before"),
            given.get("limit", kinds.MAX_ROWS),
        )
        scope = who.scope(given)
        return Later(lambda reply: self._views.history(scope, since_wall_ns, before, limit, reply))

    @verb("report", EVERYONE, SINCE)
    def _report(self, who: Speaker, given: dict[str, Any]) -> Later:
        scope = who.scope(given)
        return Later(lambda reply: self._views.report(scope, given.get("since_wall_ns", 0), reply))

    @verb("leases", EVERYONE, LEASES)
    def _leases(self, who: Speaker, given: dict[str, Any]) -> Later:
        scope, now_wall_ns = who.scope(given), self._daemon.clock.wall_ns()
        span_wall_ns = given.get("since_wall_ns", 0), given.get("until_wall_ns", now_wall_ns)
        limit = given.get("limit", kinds.MAX_ROWS)
        return Later(
            lambda reply: self._views.leases(scope, span_wall_ns, given.get("before"), limit, reply)
        )

    @verb("task_show", ENV | ADMIN, {"task": Argument(kinds.task, required=True)})
    def _lease(self, who: Speaker, given: dict[str, Any]) -> Later:
        return Later(lambda reply: self._views.lease(who.env, given["task"], reply))

    @verb("job_show", EVERYONE, WAITER, steps=((Units.STORY, Units.STORY.within()),))
    def _show(self, who: Speaker, given: dict[str, Any]) -> Any:
        """Returns a job, an array's elements, or an interactive request, in any state."""
        job_id, state = given["job"], self._daemon.state
        request = state.requests.get(job_id)
        if request is not None and who.env in (None, request.env):
            if request.job_id is None:
                return self._views.request(request)
            job_id = request.job_id
        if not self._lives(who, job_id):
            self._ended(who, job_id)
        first = self._past_of(job_id)
        if job_id in state.elements or (
            first is not None and (first.job.job_id != job_id or first.job.indices)
        ):
            _spend(who, Units.STORY * kinds.MAX_ROWS)
            names = bulk_actions.few_of(state, job_id, bulk_actions.FIRST, kinds.MAX_ROWS)
            rows = [job_rows.any_living(state, name) for name in names]
            some = [job for job in rows if job is not None]
            return Later(lambda reply: self._views.array(who.env, job_id, some, reply, who.took))
        living, ended = job_actions.living(state, job_id), [] if first is None else [first]
        return Later(lambda reply: self._views.jobs(living, ended, reply, who.took))

    @verb(
        "job_wait",
        ENV | ADMIN,
        {"jobs": Argument(kinds.jobs, required=True)},
        steps=((Units.FIND, Units.FIND.within()),),
    )
    def _wait(self, who: Speaker, given: dict[str, Any]) -> Later:
        """One wait per connection: a new wait replaces the old one."""
        job_ids = given["jobs"]
        _spend(who, len(job_ids) * Units.FIND)

        def begin(reply: Callable[[Any], None]) -> None:
            work = self._find_all(who, job_ids)
            stop = work.close
            self._takes_place(who.session, stop)
            in_turns(
                self._daemon.loop,
                work,
                lambda _: wait(reply, stop),
                lambda error: reply(internal_fault(error)),
                who.took,
            )

        def wait(reply: Callable[[Any], None], stop: Callable[[], None]) -> None:
            if who.session is not None and self._give_up.get(who.session.connection) is not stop:
                return  # the client has gone meanwhile, or waits for others
            self._takes_place(
                who.session,
                self.waits.begin(job_ids, lambda: self._views.outcomes(who.env, job_ids, reply)),
            )

        return Later(begin)

    def _takes_place(self, session: Session | None, give_up: Callable[[], None]) -> None:
        """Of the wait that the connection has had until now."""
        if session is not None:
            self.closed(session)
            self._give_up[session.connection] = give_up

    def _find_all(self, who: Speaker, job_ids: Sequence[str]) -> Work[None]:
        """Raises OperationError for one that the caller may not see."""
        most = Units.FIND.within()
        for start in range(0, len(job_ids), most):
            some = job_ids[start : start + most]
            who = who._replace(past=self._past(some))
            for job_id in some:
                if not self._lives(who, job_id):
                    self._ended(who, job_id)
            if start + most < len(job_ids):
                yield

    # -- logs --

    @verb("job_log_read", ENV | ADMIN, {**ONE_JOB, **LOG_PIECE}, cost_ns=LOG_READ_NS)
    def _log_read(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any] | Later:
        """The next piece of a log's output from `offset` on (output_reads.py).

        Raises OperationError."""
        job_id, state = given["job"], self._daemon.state
        ended = self._past_of(job_id)
        known = [job_rows.any_living(state, job_id), None if ended is None else ended.job]
        mine = [job for job in known if job is not None and who.env in (None, job.env)]
        job = next(iter(mine), None)
        if job is None:
            raise _no_job(who, job_id)
        if job.job_id != job_id or job.indices:
            element = array_rows.first(job) if job.indices else job.job_id
            raise OperationError(
                f"{job_id} is an array", f"name one of its elements, for example {element}"
            )
        number = given.get("attempt") or job.attempt
        if number == 0 and ended is None:
            raise OperationError(messages.NOT_STARTED(job=job_id))
        waits = given.get("wait", False)
        return self.logs.read(who.session, job, number, given.get("offset", 0), waits)


def _is_named(row: QueueRow, session: Session | None) -> bool:
    """Returns whether the caller's uid or groups are in the queue's lists."""
    if not isinstance(session, Connection):
        return False
    identity = session.identity
    uids, gids = {user_id(name) for name in row.users}, {group_id(name) for name in row.groups}
    return identity.uid in uids or not gids.isdisjoint({identity.gid, *identity.gids})


def _no_job(who: Speaker, job_id: str) -> OperationError:
    if job_id.startswith("r"):
        return OperationError(
            f"no request {job_id!r} waits here",
            "`nodemgr status` shows requests, and the tasks of those that were granted",
            "not_found",
        )
    return OperationError(
        stated(
            f"there is no job {job_id!r}",
            "`nodemgr queue` shows what waits, `nodemgr history` what has ended",
            "not_found",
        )
        if who.env is None
        else stated(
            f"{who.env} has no job {job_id!r}",
            "`nodemgr queue` shows what waits, `nodemgr history` what has ended",
            "not_found",
        )
    )


def _read_units(job: object) -> int:
    """Of one of many submissions, to be read."""
    given = job if isinstance(job, dict) else {}
    features = Units.FEATURES if given.get("features") is not None else 0
    return Units.READ + features + (Units.FIND if given.get("recognised") is not None else 0)


def _spend(who: Speaker, units: int) -> None:
    """Charges the caller's environment, before the work is done."""
    if who.session is not None:
        who.session.spend(units * UNIT_NS)


def _refused(error: OperationError) -> dict[str, Any]:
    return error.answer()


def _user_of_job(uid: int) -> str:
    """The name by which the launcher finds the user's groups. Raises OperationError."""
    try:
        return known_user_name(uid)
    except TimeoutError:
        raise OperationError(
            f"the user database of the node does not name uid {uid} in time",
            "submit the job again in a moment",
            "busy",
        ) from None


def _own_key(key: str, uid: int, argv: Sequence[str]) -> str:
    """A key means the same submission for one user and command alone: others can know it."""
    return hashlib.blake2b(repr((key, uid, tuple(argv))).encode(), digest_size=16).hexdigest()


def _submitted(answered: effects.SubmitAnswered) -> dict[str, Any] | OperationError:
    if answered.job_id is not None:
        return {"job": answered.job_id}
    code = answered.code
    return OperationError(
        relayed(answered.reason),
        code=(
            "quota"
            if code in QUOTA_CODES
            else CODES.get(code, "refused")
            if code is not None
            else "refused"
        ),
    )
