"""A real node in an emulated machine: `python -m tests.vm`.

The machine has its own kernel, systemd as PID 1 and cgroup v2. It needs root, qemu, mmdebstrap and
e2fsprogs, and no KVM. `machine` boots, `images` builds, `cases` say what is tried.
"""
