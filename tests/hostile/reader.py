"""A program of an ordinary user that looks for what others hold: run by /usr/bin/python3 -I -S.

Prints one line of JSON: how many files of memory, sockets and files of other users' processes it
could open by /proc, and which of the manager's files it could open to read or to write.

    reader.py RUN_DIR STATE_DIR
"""

import json
import os
import sys


def opened(path, flags):
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def descriptors_of_others():
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat("/proc/" + pid).st_uid == os.getuid():
                continue
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        found += [f"/proc/{pid}/fd/{number}" for number in numbers]
    return found


def files_of(directory):
    for folder, folders, names in os.walk(directory):
        for name in (*names, *folders):
            yield os.path.join(folder, name)


def user_of(pid):
    """None: the process has ended."""
    try:
        return os.stat("/proc/" + pid).st_uid
    except OSError:
        return None


def main():
    run_dir, state_dir = sys.argv[1:]
    told = {
        "descriptors": [each for each in descriptors_of_others() if opened(each, os.O_RDONLY)],
        "memories": [
            pid
            for pid in os.listdir("/proc")
            if pid.isdecimal()
            and user_of(pid) not in (None, os.getuid())
            and opened(f"/proc/{pid}/mem", os.O_RDONLY)
        ],
        "state": [each for each in files_of(state_dir) if opened(each, os.O_RDONLY)],
        "written": [each for each in files_of(run_dir) if opened(each, os.O_WRONLY)],
        "replaced": [],
    }
    for each in (run_dir, state_dir, *files_of(run_dir)):
        if os.path.isdir(each) and os.access(each, os.W_OK):
            told["replaced"].append(each)
    print(json.dumps(told))


main()
