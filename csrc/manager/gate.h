/* gate.h: device gates in the kernel: an eBPF program at a container's cgroup, and the map of the
 * devices that it lets through; another program for logins and jobs of the node, whose map names
 * the cgroup, too. Part of the manager's extension alone.
 *
 * Knows: bpf(2), the program. Must not know: environments, leases, pinned paths, owners of devices.
 *
 * Functions return a descriptor, or 0 or more, or -errno. Descriptors are close-on-exec. Map and
 * program live while they are pinned or attached, even after the process that made them.
 */
#ifndef NM_GATE_H
#define NM_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cffi: begin */
enum {
    NM_GATE_MOST_STEPS = 32,
    NM_GATE_MOST_DEVICES = 4096,
    NM_GATE_GPU_MAJOR = 195,
    NM_GATE_MODESET = 254,
    NM_GATE_CONTROL = 255
};

struct nm_device {
    uint32_t major, minor;
};

/* A device in one cgroup. */
struct nm_place {
    uint64_t cgroup; /* the inode of its directory */
    uint32_t major, minor;
};

/* Writes the instructions of the program, at most NM_GATE_MOST_STEPS, and returns how many. The
 * kernel runs it when a process in the cgroup, or below, opens or makes a device node. Character
 * devices of the GPUs (major 195, except the control nodes 254 and 255) and of NVIDIA's
 * capabilities (caps_major; -1: none) open only while (major, minor) is a key of the map. Making
 * a node opens nothing and passes, as does every other device. */
int nm_gate_program(uint64_t *steps, int caps_major, int map_fd);

/* The same with a struct nm_place as the key: the cgroup is that in which the process is directly.
 * Processes of root pass. */
int nm_gate_node_program(uint64_t *steps, int caps_major, int map_fd);

/* A new map without open devices, of struct nm_device or (is_node) struct nm_place. */
int nm_gate_new_map(bool is_node);
/* 1: this descriptor is such a map; 0: it is not. */
int nm_gate_is_map(int fd, bool is_node);
/* The program for this map, loaded. */
int nm_gate_load(int caps_major, int map_fd, bool is_node);
/* 1: two loaded programs are the same, except for their maps. */
int nm_gate_is_same(int program_fd, int other_fd);

/* Mounts a BPF file system unless there is one. */
int nm_gate_mount(const char *path);
/* A file in that file system, made and opened. */
int nm_gate_pin(int fd, const char *path);
int nm_gate_open_pin(const char *path);

/* A key is a struct nm_device or a struct nm_place, as the map has it. */
int nm_gate_set_open(int map_fd, const void *key);
/* No error if it is not open. */
int nm_gate_set_shut(int map_fd, const void *key);
/* The open key after `after` (NULL: the first): 1, or 0 if there is none. */
int nm_gate_next_open(int map_fd, const void *after, void *next);

/* In addition to other programs of the cgroup: a device must pass all of them. */
int nm_gate_attach(int cgroup_fd, int program_fd);
/* No error if it is not attached there. */
int nm_gate_detach(int cgroup_fd, int program_fd);
/* 1: the program decides in this cgroup, attached there or above. */
int nm_gate_is_attached(int cgroup_fd, int program_fd);
/* cffi: end */

#endif
