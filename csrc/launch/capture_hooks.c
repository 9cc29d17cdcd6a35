/* capture_hooks.c: streams under capture, and streams that end, for the launch gate.
 *
 * Knows: how many captures are under way. Must not know: turns.
 *
 * A launch into a stream under capture only adds a node to a graph. The driver is asked only while
 * some capture is under way.
 */
#include <stdatomic.h>

#include "client/client.h"
#include "hooks/interpose.h"
#include "launch/gpu_gate.h"

enum { SUCCESS = NM_CUDA_SUCCESS };

static _Atomic int captures;

bool nm_captures_under_way(void)
{
    return atomic_load_explicit(&captures, memory_order_relaxed) > 0;
}

bool nm_is_captured(nm_cu_stream stream, bool per_thread)
{
    int status = 0;
    if (!nm_captures_under_way())
        return false;
    int result = per_thread && stream == NULL ? nm_real_cuStreamIsCapturing_ptsz(stream, &status)
                                              : nm_real_cuStreamIsCapturing(stream, &status);
    /* the legacy stream answers with an error while another stream is captured */
    return result != SUCCESS || status != 0;
}

void nm_captures_forget(void)
{
    atomic_store(&captures, 0);
}

/* Counted before the call: a launch of another thread then asks the driver. */
static void begins(nm_cu_stream stream, bool per_thread)
{
    nm_launch_before_wait(stream, per_thread, false);
    atomic_fetch_add(&captures, 1);
}

static int begun(int result)
{
    if (result != SUCCESS)
        atomic_fetch_sub(&captures, 1);
    return result;
}

/* Whether the stream is captured now, or was until the capture became invalid. */
static bool is_ending(nm_cu_stream stream, bool per_thread)
{
    int status = 0;
    int result = per_thread && stream == NULL ? nm_real_cuStreamIsCapturing_ptsz(stream, &status)
                                              : nm_real_cuStreamIsCapturing(stream, &status);
    return result == SUCCESS && status != 0;
}

/* The capture is over, also where its end reports an error. */
static int ended(int result, bool was_captured)
{
    int count = atomic_load(&captures);
    while (was_captured && count > 0 && !atomic_compare_exchange_weak(&captures, &count, count - 1))
        ;
    return result;
}

int nm_hook_cuStreamBeginCapture(nm_cu_stream stream)
{
    begins(stream, false);
    return begun(nm_real_cuStreamBeginCapture(stream));
}

int nm_hook_cuStreamBeginCapture_ptsz(nm_cu_stream stream)
{
    begins(stream, true);
    return begun(nm_real_cuStreamBeginCapture_ptsz(stream));
}

int nm_hook_cuStreamBeginCapture_v2(nm_cu_stream stream, int mode)
{
    begins(stream, false);
    return begun(nm_real_cuStreamBeginCapture_v2(stream, mode));
}

int nm_hook_cuStreamBeginCapture_v2_ptsz(nm_cu_stream stream, int mode)
{
    begins(stream, true);
    return begun(nm_real_cuStreamBeginCapture_v2_ptsz(stream, mode));
}

int nm_hook_cuStreamBeginCaptureToGraph(nm_cu_stream stream, nm_cu_graph graph,
                                        const nm_cu_graph_node *nodes, const void *edges,
                                        size_t count, int mode)
{
    begins(stream, false);
    return begun(nm_real_cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode));
}

int nm_hook_cuStreamBeginCaptureToGraph_ptsz(nm_cu_stream stream, nm_cu_graph graph,
                                             const nm_cu_graph_node *nodes, const void *edges,
                                             size_t count, int mode)
{
    begins(stream, true);
    return begun(
        nm_real_cuStreamBeginCaptureToGraph_ptsz(stream, graph, nodes, edges, count, mode));
}

/* Ended by cuStreamEndCapture, too. */
int nm_hook_cuStreamBeginRecaptureToGraph(nm_cu_stream stream, int mode, nm_cu_graph graph,
                                          void *callback, void *data)
{
    begins(stream, false);
    return begun(nm_real_cuStreamBeginRecaptureToGraph(stream, mode, graph, callback, data));
}

int nm_hook_cuStreamBeginRecaptureToGraph_ptsz(nm_cu_stream stream, int mode, nm_cu_graph graph,
                                               void *callback, void *data)
{
    begins(stream, true);
    return begun(nm_real_cuStreamBeginRecaptureToGraph_ptsz(stream, mode, graph, callback, data));
}

int nm_hook_cuStreamEndCapture(nm_cu_stream stream, nm_cu_graph *graph)
{
    bool was_captured = is_ending(stream, false);
    return ended(nm_real_cuStreamEndCapture(stream, graph), was_captured);
}

int nm_hook_cuStreamEndCapture_ptsz(nm_cu_stream stream, nm_cu_graph *graph)
{
    bool was_captured = is_ending(stream, true);
    return ended(nm_real_cuStreamEndCapture_ptsz(stream, graph), was_captured);
}

/* -- a stream that ends: no event can be recorded in it any more -- */

static void leaves(nm_cu_stream stream)
{
    for (uint32_t row = 0; nm_gates_bound() && row < NM_LEDGER_ROWS; row++)
        if (nm_gate_at(row) != NULL)
            nm_meter_drop(nm_gate_at(row), stream, false);
}

int nm_hook_cuStreamDestroy_v2(nm_cu_stream stream)
{
    nm_launch_before_wait(stream, false, false);
    leaves(stream);
    return nm_real_cuStreamDestroy_v2(stream);
}

int nm_hook_cuStreamDestroy(nm_cu_stream stream)
{
    nm_launch_before_wait(stream, false, false);
    leaves(stream);
    return nm_real_cuStreamDestroy(stream);
}
