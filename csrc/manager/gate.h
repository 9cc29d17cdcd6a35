/*
 * The device gate in the kernel: an eBPF program at a container's cgroup, and the map that says
 * which devices it lets through.
 *
 * Knows: bpf(2), and the program. Must not know: environments, leases, where anything is pinned,
 * which devices are whose. Part of the manager's extension alone: no user's process carries this.
 *
 * The program is asked by the kernel whenever a process in the cgroup, or in one below it, opens or
 * makes a device node. It gates the character devices of the GPUs (major 195, but for the control
 * nodes 254 and 255) and of NVIDIA's capabilities (a major given at run time): these open only
 * while (major, minor) is a key of the map. To make a node opens nothing and is let through, as is
 * every other device. Map and program live on while they are pinned or attached, whoever made them.
 *
 * Functions return a descriptor or 0 or more, or -errno. Descriptors are close-on-exec.
 */
#ifndef NM_GATE_H
#define NM_GATE_H

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

/* The program, as the words of its instructions: at most NM_GATE_MOST_STEPS of them; how many.
   caps_major -1: there are none. */
int nm_gate_program(uint64_t *steps, int caps_major, int map_fd);

/* A new map, in which nothing is open. */
int nm_gate_new_map(void);
/* 1: this descriptor is such a map; 0: it is something else. */
int nm_gate_is_map(int fd);
/* The program for this map, loaded. */
int nm_gate_load(int caps_major, int map_fd);
/* 1: two loaded programs are the same, except for their maps. */
int nm_gate_is_same(int program_fd, int other_fd);

/* Mounts a BPF file system unless there is one. */
int nm_gate_mount(const char *path);
/* A file in it, made and opened. */
int nm_gate_pin(int fd, const char *path);
int nm_gate_open_pin(const char *path);

int nm_gate_set_open(int map_fd, struct nm_device device);
/* It need not be open. */
int nm_gate_set_shut(int map_fd, struct nm_device device);
/* The open device after `after` (NULL: the first): 1, or 0 where there is none. */
int nm_gate_next_open(int map_fd, const struct nm_device *after, struct nm_device *next);

/* Beside any programs that the cgroup has: a device must pass all of them. */
int nm_gate_attach(int cgroup_fd, int program_fd);
/* 1: the program decides in this cgroup, be it attached there or above. */
int nm_gate_is_attached(int cgroup_fd, int program_fd);
/* cffi: end */

#endif
