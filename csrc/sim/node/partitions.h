/* partitions.h: a cgroup's share of a device, as NVML's memory limits set it: the one quota that
 * the driver itself keeps.
 *
 * Knows: cgroups as directories, their processes, the memory of these.
 * Must not know: NVML's structures (nvml.c), what memory is for.
 *
 * A cgroup is known by its directory's identity, which is the same in every mount and namespace. A
 * process counts in its own cgroup and in all above it that it sees. NODEMGR_SIM_CGROUP=DIRECTORY
 * puts a process into a cgroup that any directory
 * stands for: so a test needs neither root nor cgroup v2.
 */
#ifndef NM_SIM_PARTITIONS_H
#define NM_SIM_PARTITIONS_H

#include "sim/node/node.h"

#define NM_SIM_NO_LIMIT UINT64_MAX

/* Notes in which cgroups this process, owner of node->slot, is. */
void nm_sim_partition_join(nm_sim_node *node);

/* After this process has charged something on a device: is every cgroup it is in still within
   its hard limit there? */
bool nm_sim_partition_fits(nm_sim_node *node, int device);

typedef struct {
    uint64_t soft_bytes, hard_bytes, used_bytes;
} nm_sim_partition_limits;

/* 0, or an errno: that of looking at the directory, ENOSPC where there is no room for one more
 * cgroup. Soft 0 and hard NM_SIM_NO_LIMIT lift the limits. */
int nm_sim_partition_set(nm_sim_node *node, int device, const char *directory, uint64_t soft_bytes,
                         uint64_t hard_bytes);
/* The same; ESRCH where no limits are set. */
int nm_sim_partition_get(nm_sim_node *node, int device, const char *directory,
                         nm_sim_partition_limits *out);

#endif
