"""How long a test waits for what must happen: long, because it limits a hang and nothing else."""

import os

WAIT_LIMIT_S = float(os.environ.get("NODEMGR_TEST_WAIT_S", "300"))
"""On a machine with ten times the load of its cores an import of PyTorch took more than 60 s.

The variable shortens it where a machine has no other work and its minutes are dear (bench/first).
"""
