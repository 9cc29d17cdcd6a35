"""`python -I …/client_plugin/elastic/__main__.py --gpus 1-4 -- COMMAND`: an elastic task's leader.

The folder of client_plugin is on the path during the imports alone.
"""

from __future__ import annotations

import os
import sys

PAYLOAD = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main() -> int:
    sys.path.insert(0, PAYLOAD)
    try:
        from client_plugin.ways import ctrl_c

        ctrl_c.end_at_once()
        ctrl_c.waited()
        from client_plugin import units  # noqa: F401 (Membership reads sizes)
        from client_plugin.elastic import command, leader
        from client_plugin.elastic.membership import Membership
        from client_plugin.elastic.torchrun import BadTorchrun
        from client_plugin.ways.faults import Exit, Fault, say
    finally:
        sys.path.remove(PAYLOAD)
    try:
        task = command.ElasticTask(sys.argv[1:])
    except BadTorchrun as error:
        say(
            f"elastic: torchrun does not take these words ({error})",
            "name the script itself, as in `python train.py`",
        )
        return Exit.USAGE
    try:
        ctrl_c.interrupt()
        lease = Membership.acquire(
            task.minimum, task.maximum, command=task.command, memory=task.memory,
            compute=task.compute,
        )  # fmt: skip
        return leader.lead(task, lease)
    except Fault as fault:
        say(fault.message)
        return fault.code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    finally:
        ctrl_c.end_at_once()


if __name__ == "__main__":
    sys.exit(main())
