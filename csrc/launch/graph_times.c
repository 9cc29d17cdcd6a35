/* graph_times.c: the first estimate of an executable graph: the sum of its kernels; see launch.h.
 *
 * Knows: the parameters of kernel nodes. Must not know: turns.
 *
 * Other nodes count as nothing: their time is not known before the graph is measured. A graph has
 * the handle of an earlier one that was destroyed, so its estimate begins anew.
 */
#include "client/client.h"
#include "hooks/interpose.h"
#include "launch/estimates.h"
#include "launch/launch.h"

enum { SUCCESS = NM_CUDA_SUCCESS };

void nm_launch_add_node(uint64_t *expected_ns, nm_cu_graph_node node, int type)
{
    nm_cu_kernel_node_params kernel = {0};
    if (type != NM_CU_GRAPH_NODE_TYPE_KERNEL || !nm_client_gated())
        return;
    if (nm_real_cuGraphKernelNodeGetParams_v2(node, &kernel) != SUCCESS &&
        nm_real_cuGraphKernelNodeGetParams(node, &kernel) != SUCCESS)
        return;
    const void *function = kernel.function != NULL ? kernel.function : kernel.kernel;
    uint64_t blocks = (uint64_t)kernel.grid_x * kernel.grid_y * kernel.grid_z;
    *expected_ns += nm_estimate_known_ns(function, blocks);
}

void nm_launch_expect_graph(nm_cu_graph_exec exec, uint64_t expected_ns)
{
    if (nm_client_gated())
        nm_estimate_begin(exec, 0, expected_ns);
}

void nm_launch_change_graph(nm_cu_graph_exec exec)
{
    if (nm_client_gated())
        nm_estimate_begin(exec, 0, nm_estimate_known_ns(exec, 0));
}
