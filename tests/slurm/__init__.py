"""The pool on a real Slurm of four nodes on this machine: `python -m tests.slurm`."""
