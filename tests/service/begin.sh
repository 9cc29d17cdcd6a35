#!/bin/sh
# Boots systemd on a copy of this machine's root that forgets everything. Runs in namespaces of its own (mounts, PIDs, cgroups, …).
# usage: begin.sh DIRECTORY PATH…    DIRECTORY: an empty one; PATH: what the copy must show although it is mounted on the root.
set -eu
directory=$1
shift
mount --make-rprivate /
mount -t tmpfs tmpfs "$directory/over"
mkdir "$directory/over/upper" "$directory/over/work" "$directory/over/root"
root=$directory/over/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$directory/over/upper,workdir=$directory/over/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
for place in run dev; do mount -t tmpfs tmpfs "$root/$place"; done
for node in null zero full random urandom; do cp -a "/dev/$node" "$root/dev/"; done
mount -t bpf bpf "$root/sys/fs/bpf"
if [ -d /sys/fs/cgroup/unified ]; then
    mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
    mkdir "$root/sys/fs/cgroup/systemd" "$root/sys/fs/cgroup/unified"
    mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup/unified"
else
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
fi
for path in "$directory/shared" "$@"; do
    mkdir -p "$root$path"
    mount --bind "$path" "$root$path"
done
cp "$directory/shared/node.target" "$root/etc/systemd/system/"
exec chroot "$root" /bin/sh -c ". '$directory/shared/prepare.sh'; exec /lib/systemd/systemd --system --unit=node.target --log-target=console"
