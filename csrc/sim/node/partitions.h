/* partitions.h: a cgroup's share of a device, as NVML's memory limits set it: the one quota that
 * the driver itself enforces.
 *
 * Knows: cgroups as directories, their processes and memory. Must not know: NVML's structures
 * (nvml.c), the use of memory.
 *
 * A cgroup is known by its directory's identity, the same in every mount and namespace. A process
 * counts in its own cgroup and in all visible ones above. NODEMGR_SIM_CGROUP=DIRECTORY puts a
 * process into the cgroup of any directory: a test needs neither root nor cgroup v2.
 */
#ifndef NM_SIM_PARTITIONS_H
#define NM_SIM_PARTITIONS_H

#include "sim/node/node.h"

#define NM_SIM_NO_LIMIT UINT64_MAX

/* Notes the cgroups of this process, the owner of node->slot. */
void nm_sim_partition_join(nm_sim_node *node);

/* After a charge of this process on a device: whether each of its cgroups is within its hard
   limit there. */
bool nm_sim_partition_fits(nm_sim_node *node, int device);

typedef struct {
    uint64_t soft_bytes, hard_bytes, used_bytes;
} nm_sim_partition_limits;

/* 0, or an errno: that of looking at the directory, ENOSPC where there is no room for one more
 * cgroup. Soft 0 and hard NM_SIM_NO_LIMIT lift the limits. */
int nm_sim_partition_set(nm_sim_node *node, int device, const char *directory, uint64_t soft_bytes,
                         uint64_t hard_bytes);
/* The same; ESRCH without limits. */
int nm_sim_partition_get(nm_sim_node *node, int device, const char *directory,
                         nm_sim_partition_limits *out);

#endif
