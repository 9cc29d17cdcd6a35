"""How long a test waits for what must happen: long, because it limits a hang and nothing else."""

WAIT_LIMIT_S = 300.0
"""On a machine with ten times the load of its cores an import of PyTorch took more than 60 s."""
