/* graphs.c: the memory of allocation nodes in graphs.
 *
 * Knows: the needs of a graph's nodes; a device keeps one reserve for all graphs of the process.
 * Must not know: the ledger, the lease (charge.h).
 *
 * An allocation node has an address from its creation on, and memory from a launch or upload on.
 * Nodes may share addresses, so a graph needs the union of their ranges. This is charged before a
 * launch, beyond the memory in use. Afterwards the charge becomes the device's reserve.
 */
#include "launch/launch.h"
#include "memory/graphs.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "account/charge.h"
#include "base/prim.h"
#include "client/client.h"
#include "hooks/interpose.h"
#include "memory/pools.h"

enum { SUCCESS = NM_CUDA_SUCCESS };
enum { DEVICES = NM_LEDGER_ROWS, DEPTH = 8, GROWTH_BYTES = 2 << 20 };

struct reserve {
    struct nm_charge charge;
    bool used;                /* something was charged here */
    uint64_t in_flight_bytes; /* needed by launches under way */
    /* counts the times that graphs began to hold memory here; the first is 1 */
    uint64_t round;
    uint64_t round_bytes;     /* needed by the graphs launched in the round, each counted once */
};

/* A graph's need on each device, the round of its last launch there, and its time. */
struct need {
    uint64_t bytes[DEVICES];
    uint64_t round[DEVICES];
    uint64_t expected_ns; /* as its nodes were when it was made */
};

static struct nm_lock lock;               /* guards the reserves */
static struct reserve reserves[DEVICES];
/* executable graphs that are alive; at 0 a launch costs this one read */
static _Atomic uint32_t graphs_with_memory;

void nm_graphs_forget(void)
{
    memset(&lock, 0, sizeof lock);
    memset(reserves, 0, sizeof reserves);
    graphs_with_memory = 0;
}

/* -- the need of a graph -- */

struct range {
    uint64_t first, end;
    nm_cu_device device;
};

struct ranges {
    struct range *list;
    size_t count, room;
    uint64_t expected_ns; /* of all nodes, for the launch gate */
};

static void *pages(size_t bytes)
{
    void *fresh = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return fresh != MAP_FAILED ? fresh : NULL;
}

static void add_range(struct ranges *ranges, nm_cu_graph_node node)
{
    nm_cu_mem_alloc_node_params params;
    if (nm_real_cuGraphMemAllocNodeGetParams(node, &params) != SUCCESS)
        return;
    if (params.pool_props.location.type != NM_CU_MEM_LOCATION_TYPE_DEVICE)
        return;
    if (ranges->count == ranges->room) {
        size_t room = ranges->room != 0 ? ranges->room * 2 : 512;
        struct range *fresh = pages(room * sizeof *fresh);
        if (fresh == NULL)
            return;
        if (ranges->list != NULL) {
            memcpy(fresh, ranges->list, ranges->count * sizeof *fresh);
            munmap(ranges->list, ranges->room * sizeof *fresh);
        }
        ranges->list = fresh;
        ranges->room = room;
    }
    ranges->list[ranges->count++] =
        (struct range){params.dptr, params.dptr + params.bytesize, params.pool_props.location.id};
}

static void collect(struct ranges *ranges, nm_cu_graph graph, int depth);

static void visit(struct ranges *ranges, nm_cu_graph_node node, int depth)
{
    nm_cu_graph child = NULL;
    int type = -1;
    if (nm_real_cuGraphNodeGetType(node, &type) != SUCCESS)
        return;
    nm_launch_add_node(&ranges->expected_ns, node, type);
    if (type == NM_CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        add_range(ranges, node);
    else if (type == NM_CU_GRAPH_NODE_TYPE_GRAPH && depth < DEPTH &&
             nm_real_cuGraphChildGraphNodeGetGraph(node, &child) == SUCCESS)
        collect(ranges, child, depth + 1);
}

static void collect(struct ranges *ranges, nm_cu_graph graph, int depth)
{
    size_t count = 0;
    if (nm_real_cuGraphGetNodes(graph, NULL, &count) != SUCCESS || count == 0)
        return;
    size_t bytes = count * sizeof(nm_cu_graph_node);
    nm_cu_graph_node *nodes = pages(bytes);
    if (nodes == NULL)
        return;
    if (nm_real_cuGraphGetNodes(graph, nodes, &count) == SUCCESS)
        for (size_t i = 0; i < count; i++)
            visit(ranges, nodes[i], depth);
    munmap(nodes, bytes);
}

static int by_first(const void *a, const void *b)
{
    const struct range *left = a, *right = b;
    return left->first < right->first ? -1 : left->first > right->first;
}

static struct need need_of(nm_cu_graph graph)
{
    struct need need = {0};
    struct ranges ranges = {0};
    uint64_t end[DEVICES] = {0};
    collect(&ranges, graph, 0);
    need.expected_ns = ranges.expected_ns;
    if (ranges.count > 1)
        qsort(ranges.list, ranges.count, sizeof *ranges.list, by_first);
    for (size_t i = 0; i < ranges.count; i++) {
        const struct range *range = &ranges.list[i];
        if (range->device < 0 || range->device >= DEVICES || range->end <= end[range->device])
            continue;
        uint64_t first = range->first > end[range->device] ? range->first : end[range->device];
        need.bytes[range->device] += range->end - first;
        end[range->device] = range->end;
    }
    if (ranges.list != NULL)
        munmap(ranges.list, ranges.room * sizeof *ranges.list);
    return need;
}

/* -- executable graphs -- */

/* Handles are addresses: their six upper bits are free for the device. */
static uint64_t key_of(nm_cu_graph_exec exec, nm_cu_device device)
{
    return (uint64_t)(uintptr_t)exec << 6 | (uint64_t)device;
}

static void forget(nm_cu_graph_exec exec)
{
    struct nm_block block;
    for (nm_cu_device device = 0; device < DEVICES; device++)
        if (nm_block_take(NM_BLOCK_GRAPH, key_of(exec, device), &block))
            atomic_fetch_sub(&graphs_with_memory, 1);
}

static void remember(nm_cu_graph_exec exec, const struct need *need)
{
    struct nm_block replaced;
    forget(exec);
    for (nm_cu_device device = 0; device < DEVICES; device++) {
        struct nm_block block = {.kind = NM_BLOCK_GRAPH,
                                 .key = key_of(exec, device),
                                 .bytes = need->bytes[device],
                                 .owner = need->round[device]};
        if (block.bytes != 0 && nm_block_put(&block, &replaced))
            atomic_fetch_add(&graphs_with_memory, 1);
    }
}

static struct need recall(nm_cu_graph_exec exec)
{
    struct need need = {0};
    struct nm_block block;
    for (nm_cu_device device = 0; device < DEVICES; device++)
        if (nm_block_get(NM_BLOCK_GRAPH, key_of(exec, device), &block)) {
            need.bytes[device] = block.bytes;
            need.round[device] = block.owner;
        }
    return need;
}

/* Records a launch in the rounds of `need`. Two threads' launches at once may count it twice,
   which is never too little. */
static void mark(nm_cu_graph_exec exec, const struct need *need)
{
    struct nm_block block, replaced;
    for (nm_cu_device device = 0; device < DEVICES; device++)
        if (need->bytes[device] != 0 &&
            nm_block_get(NM_BLOCK_GRAPH, key_of(exec, device), &block) &&
            block.owner != need->round[device]) {
            block.owner = need->round[device];
            nm_block_put(&block, &replaced);
        }
}

/* -- the reserve of a device -- */

static uint64_t attribute(nm_cu_device device, int name, uint64_t otherwise)
{
    uint64_t value = 0;
    return nm_real_cuDeviceGetGraphMemAttribute(device, name, &value) == SUCCESS ? value
                                                                                 : otherwise;
}

static uint64_t grown(uint64_t bytes)
{
    return bytes > UINT64_MAX - GROWTH_BYTES
               ? bytes
               : (bytes + GROWTH_BYTES - 1) / GROWTH_BYTES * GROWTH_BYTES;
}

/* With the lock held: the charge becomes the reserve and the needs of launches under way. */
static void settle(nm_cu_device device)
{
    struct reserve *reserve = &reserves[device];
    uint64_t held =
        attribute(device, NM_CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, reserve->charge.bytes);
    uint64_t wanted = grown(reserve->in_flight_bytes);
    nm_charge_resize_anyway(&reserve->charge, wanted > held ? wanted : held);
    if (reserve->in_flight_bytes == 0 &&
        attribute(device, NM_CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, 1) == 0) {
        reserve->round++;
        reserve->round_bytes = 0;
    }
}

void nm_graphs_settle(void)
{
    nm_lock(&lock);
    for (nm_cu_device device = 0; device < DEVICES; device++)
        if (reserves[device].used)
            settle(device);
    nm_unlock(&lock);
}

/* With the lock held. A graph's memory exists at most once, however often it is launched. So the
 * need is at most the memory in use and the graph's own bytes, and at most the bytes of all
 * graphs of this round. */
static bool take(struct reserve *reserve, nm_cu_device device, uint64_t bytes, uint64_t *round)
{
    uint64_t used =
        attribute(device, NM_CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, 0) + reserve->in_flight_bytes;
    uint64_t most = grown(used + bytes),
             all = reserve->round_bytes + (*round == reserve->round ? 0 : grown(bytes));
    uint64_t needed = most < all ? most : all;
    if (needed > reserve->charge.bytes && !nm_charge_resize(&reserve->charge, needed))
        return false;
    *round = reserve->round;
    reserve->round_bytes = all;
    reserve->in_flight_bytes += bytes;
    return true;
}

static bool take_after_trim(struct reserve *reserve, nm_cu_device device, uint64_t bytes,
                            uint64_t *round)
{
    nm_unlock(&lock);
    nm_pools_give_up();
    nm_real_cuDeviceGraphMemTrim(device);
    nm_lock(&lock);
    settle(device);
    return take(reserve, device, bytes, round);
}

/* SUCCESS, or the refusal. */
static int begin_device(nm_cu_device device, uint64_t bytes, uint64_t *round)
{
    struct nm_charge row;
    if (!nm_charge_take(&row, device, 0))
        return nm_charge_refusal(&row);
    if (row.row < 0)
        return SUCCESS;
    nm_lock(&lock);
    struct reserve *reserve = &reserves[device];
    reserve->charge.row = row.row;
    reserve->used = true;
    reserve->round += reserve->round == 0;
    bool within =
        take(reserve, device, bytes, round) || take_after_trim(reserve, device, bytes, round);
    if (!within)
        reserve->charge.refused_bytes = bytes;
    struct nm_charge charge = reserve->charge;
    nm_unlock(&lock);
    return within ? SUCCESS : nm_charge_refusal(&charge);
}

static void end(const struct need *need, int until)
{
    nm_lock(&lock);
    for (nm_cu_device device = 0; device < until; device++) {
        struct reserve *reserve = &reserves[device];
        if (need->bytes[device] == 0 || !reserve->used)
            continue;
        reserve->in_flight_bytes -= need->bytes[device] < reserve->in_flight_bytes
                                        ? need->bytes[device]
                                        : reserve->in_flight_bytes;
        settle(device);
    }
    nm_unlock(&lock);
}

static int begin(struct need *need)
{
    for (nm_cu_device device = 0; device < DEVICES; device++) {
        int result = need->bytes[device] != 0
                         ? begin_device(device, need->bytes[device], &need->round[device])
                         : SUCCESS;
        if (result != SUCCESS) {
            end(need, device);
            return result;
        }
    }
    return SUCCESS;
}

/* -- the hooks -- */

static int launch(int (*real)(nm_cu_graph_exec, nm_cu_stream), nm_cu_graph_exec exec,
                  nm_cu_stream stream)
{
    if (atomic_load_explicit(&graphs_with_memory, memory_order_relaxed) == 0)
        return real(exec, stream);
    struct need need = recall(exec);
    int result = begin(&need);
    if (result != SUCCESS)
        return result;
    mark(exec, &need);
    result = real(exec, stream);
    end(&need, DEVICES);
    return result;
}

/* For the launch gate a graph is one kernel, whose time it learns; it begins with that of the
   nodes. */
static int launch_gated(nm_type_cuGraphLaunch *real, nm_cu_graph_exec exec, nm_cu_stream stream,
                        bool per_thread)
{
    struct nm_launch through;
    if (!nm_client_gated())
        return launch(real, exec, stream);
    int result = nm_launch_begin(&through, exec, 0, stream, per_thread);
    if (result != SUCCESS)
        return result;
    result = launch(real, exec, stream);
    nm_launch_end(&through, result);
    return result;
}

int nm_hook_cuGraphLaunch(nm_cu_graph_exec exec, nm_cu_stream stream)
{
    return launch_gated(nm_real_cuGraphLaunch, exec, stream, false);
}

int nm_hook_cuGraphLaunch_ptsz(nm_cu_graph_exec exec, nm_cu_stream stream)
{
    return launch_gated(nm_real_cuGraphLaunch_ptsz, exec, stream, true);
}

int nm_hook_cuGraphUpload(nm_cu_graph_exec exec, nm_cu_stream stream)
{
    return launch(nm_real_cuGraphUpload, exec, stream);
}

int nm_hook_cuGraphUpload_ptsz(nm_cu_graph_exec exec, nm_cu_stream stream)
{
    return launch(nm_real_cuGraphUpload_ptsz, exec, stream);
}

static int made(int result, nm_cu_graph_exec *exec, nm_cu_graph graph)
{
    if (result == SUCCESS && nm_client_lease() != NULL) {
        struct need need = need_of(graph);
        remember(*exec, &need);
        nm_launch_expect_graph(*exec, need.expected_ns);
    }
    return result;
}

int nm_hook_cuGraphInstantiate(nm_cu_graph_exec *exec, nm_cu_graph graph, nm_cu_graph_node *error,
                               char *log, size_t log_bytes)
{
    return made(nm_real_cuGraphInstantiate(exec, graph, error, log, log_bytes), exec, graph);
}

int nm_hook_cuGraphInstantiate_v2(nm_cu_graph_exec *exec, nm_cu_graph graph,
                                  nm_cu_graph_node *error, char *log, size_t log_bytes)
{
    return made(nm_real_cuGraphInstantiate_v2(exec, graph, error, log, log_bytes), exec, graph);
}

int nm_hook_cuGraphInstantiateWithFlags(nm_cu_graph_exec *exec, nm_cu_graph graph,
                                        unsigned long long flags)
{
    return made(nm_real_cuGraphInstantiateWithFlags(exec, graph, flags), exec, graph);
}

/* Here a flag asks for an upload at once. */
static int instantiate(nm_type_cuGraphInstantiateWithParams *real, nm_cu_graph_exec *exec,
                       nm_cu_graph graph, nm_cu_graph_instantiate_params *params)
{
    bool uploads = params != NULL && (params->flags & NM_CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
    if (!uploads || nm_client_lease() == NULL)
        return made(real(exec, graph, params), exec, graph);
    struct need need = need_of(graph);
    int result = begin(&need);
    if (result != SUCCESS)
        return result;
    result = real(exec, graph, params);
    end(&need, DEVICES);
    if (result == SUCCESS) {
        remember(*exec, &need);
        nm_launch_expect_graph(*exec, need.expected_ns);
    }
    return result;
}

int nm_hook_cuGraphInstantiateWithParams(nm_cu_graph_exec *exec, nm_cu_graph graph,
                                         nm_cu_graph_instantiate_params *params)
{
    return instantiate(nm_real_cuGraphInstantiateWithParams, exec, graph, params);
}

int nm_hook_cuGraphInstantiateWithParams_ptsz(nm_cu_graph_exec *exec, nm_cu_graph graph,
                                              nm_cu_graph_instantiate_params *params)
{
    return instantiate(nm_real_cuGraphInstantiateWithParams_ptsz, exec, graph, params);
}

/* Its memory stays reserved until a trim. Its block is removed first: the next moment another
   thread's new graph may have its address. */
int nm_hook_cuGraphExecDestroy(nm_cu_graph_exec exec)
{
    if (atomic_load_explicit(&graphs_with_memory, memory_order_relaxed) == 0)
        return nm_real_cuGraphExecDestroy(exec);
    struct need need = recall(exec);
    forget(exec);
    int result = nm_real_cuGraphExecDestroy(exec);
    if (result != SUCCESS)
        remember(exec, &need);
    return result;
}

int nm_hook_cuDeviceGraphMemTrim(nm_cu_device device)
{
    int result = nm_real_cuDeviceGraphMemTrim(device);
    nm_graphs_settle();
    return result;
}
