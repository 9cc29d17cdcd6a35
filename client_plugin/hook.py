"""The load of a framework: the task gets its token, the first use of CUDA gets a gate.

The `import` mode acquires at this point.

Knows: the adapters, the lease, client.conf's `acquire`. Must not know: how modules are found and
loaded. Only exceptions that belong to the user are raised here: Ctrl-C, and those that the user's
own signal handlers raise during a wait.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

from . import environment, faults, lease


def before_load(name: str, adapter: str) -> None:
    """Run before the framework's own code: it and its children see the token.

    A wait that is cancelled here leaves no half-imported module.
    """
    try:
        serving = lease.start()
        rules = _adapter(adapter) if serving else None
        if rules is not None:
            lease.share(
                environment.TASK, os.environ.get(environment.TASK) or environment.new_token()
            )
            for variable, value in rules.DEFAULTS.items():
                if variable not in os.environ:
                    lease.share(variable, value)
    except Exception as error:
        faults.report(f"the import hook for {name}", error)
        return
    if rules is not None:
        _acquire_at_load(rules)


def after_load(module: ModuleType, adapter: str) -> None:
    try:
        if lease.serving():
            _adapter(adapter).adapt(module)
    except Exception as error:
        faults.report(f"the adapter for {module.__name__}", error)


def _acquire_at_load(rules: Any) -> None:
    """By policy, or because nothing of ours would see this framework's first use.

    A refusal does not fail the import.
    """
    unseen = rules.FIRST_USE_UNSEEN and not lease.preloaded()
    if unseen or lease.setting("acquire") == "import":
        refusal = lease.acquire()
        if refusal and unseen:
            lease.hide_gpus()
            faults.say_once(refusal)


def _adapter(name: str) -> Any:
    return importlib.import_module(f"{__package__}.adapters.{name}")
