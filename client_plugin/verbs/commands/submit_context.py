"""The surroundings of the jobs of one call of `nodemgr submit`: wishes, variables, way.

Knows: how options become arguments of an order. Must not know: how many jobs a call submits, what
is printed of them.
"""

from __future__ import annotations

import os

from client_plugin import fields
from client_plugin.messages import verbs as messages
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.launch import runner, surroundings
from client_plugin.verbs.launch.surroundings import refuse_half_elastic
from client_plugin.ways import choice
from client_plugin.ways.faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from client_plugin.verbs.arguments.parser import Said
    from client_plugin.ways.choice import UserWay
    from client_plugin.ways.retry_timeout import RetryTimeout

KEY_BYTES = 16
WISHES = kinds.options_of(fields.OF_SUBMIT)
"""The resources that a job may ask for; most of their keys are arguments of the order."""


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


def may_be_known(said: Said, wished: Dict[str, Any]) -> bool:
    """The elements of an array do different work, and an elastic task takes what time it gets."""
    return not (said.no_forecast or wished.keys() & {"array", "leader"})


def find_way(said: Said, retry_timeout: RetryTimeout) -> UserWay:
    """The way to the environment of the jobs. Raises Fault."""
    way = retry_timeout.outlast(lambda: choice.users_way(said.whom()))
    if said.inside:
        retry_timeout.outlast(lambda: runner.check(way))
    return way


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
