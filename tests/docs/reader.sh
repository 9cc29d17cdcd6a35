# The reader of a page: bash reader.sh PAGE CHECKOUT PYTHON DIRECTORY, as root in new mount and PID namespaces, which end with it.
# The node's directories are empty there; home and working directory are in DIRECTORY, the latter is like the checkout. The file
# `script` in DIRECTORY has the lines of PAGE and may call the functions below. A line that fails ends the reading.
set -eEuo pipefail
page=$1 checkout=$2 python=$3 own=$4

mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir /run/etc /run/lib
cp -a /etc/. /run/etc
mount --bind /run/etc /etc
mount --bind /run/lib /var/lib
! [ -d /sys/fs/cgroup ] || mount -t tmpfs tmpfs /sys/fs/cgroup # no test makes control groups on the machine

mkdir -p "$own"/{home,checkout/.venv,tmp}
ln -s "$checkout"/* "$own/checkout"
ln -s "$python"/* "$own/checkout/.venv"
cd "$own/checkout"
export HOME=$own/home TMPDIR=$own/tmp PATH=$python/bin:$PATH
unset "${!NODEMGR_@}" "${!XDG_@}" "${!PYTHON@}"

stays() { # COMMAND...: it goes on beside the next lines, once it has said that it is ready
    local line=
    mkfifo /run/said
    "$@" 2>/run/said &
    exec {said}</run/said
    rm /run/said
    while [[ $line != *ready* ]]; do
        IFS= read -r line <&"$said" || return
        echo "$line" >&2
    done
    cat <&"$said" >&2 &
}

ctrl_c() { # COMMAND...: the reader ends it at its first line
    local line code=0
    mkfifo /run/shown
    set -m # else it would ignore SIGINT
    "$@" >/run/shown &
    set +m
    exec {shown}</run/shown
    rm /run/shown
    IFS= read -r line <&"$shown" && echo "$line"
    kill -INT -- -$!
    wait $! || code=$?
    [[ $code == 0 || $code == 130 ]]
}

programs() { # NAME...: small programs that end well
    local name
    for name; do
        printf '#!/bin/sh\nexec true\n' >"$name"
        [[ $name != *.py ]] || echo 'print("trained")' >"$name"
        chmod +x "$name"
    done
}

trap 'echo "$page:$LINENO: ended with $?: $BASH_COMMAND" >&2' ERR
. "$own/script"
