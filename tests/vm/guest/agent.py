"""Runs in the machine as root: executes the host's commands.

One line of JSON from the host is one command: {"command": TEXT}. The answer is a line of JSON for
each line of output, {"line": TEXT}, and at last {"status": NUMBER}. The host has received a line
when the write of it returns.
"""

import json
import os
import subprocess
from pathlib import Path

PORT = "/dev/virtio-ports/agent"
BOOTS = Path("/var/lib/vm-boots")


def main() -> None:
    boots = int(BOOTS.read_text()) + 1 if BOOTS.exists() else 1
    BOOTS.write_text(str(boots))
    descriptor = os.open(PORT, os.O_RDWR)
    with os.fdopen(descriptor, "rb", closefd=False) as requests:

        def answer(**said: object) -> None:
            os.write(descriptor, json.dumps(said).encode() + b"\n")

        answer(boot=boots)
        for request in requests:
            process = subprocess.Popen(
                ["/bin/bash", "-c", json.loads(request)["command"]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/root",
                env={**os.environ, "HOME": "/root", "LANG": "C.UTF-8"},
            )
            for line in process.stdout:
                answer(line=line.decode("utf-8", "replace").rstrip("\n"))
            answer(status=process.wait())


if __name__ == "__main__":
    main()
