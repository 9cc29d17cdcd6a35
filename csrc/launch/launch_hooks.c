/* launch_hooks.c: the hooked launches: each passes the gate, then calls the driver.
 *
 * Knows: the signatures. Must not know: the gate's rules.
 */
#include "client/client.h"
#include "hooks/interpose.h"
#include "launch/launch.h"

enum { SUCCESS = NM_CUDA_SUCCESS };

static uint64_t blocks_of(unsigned x, unsigned y, unsigned z)
{
    return (uint64_t)x * y * z;
}

/* Runs `call` within the launch gate; a bound function of a linked program comes here too. */
#define THROUGH_GATE(function, blocks, stream, per_thread, call)                                \
    struct nm_launch launch;                                                                    \
    if (!nm_client_gated())                                                                     \
        return call;                                                                            \
    int result = nm_launch_begin(&launch, (const void *)(function), blocks, stream, per_thread); \
    if (result != SUCCESS)                                                                      \
        return result;                                                                          \
    result = call;                                                                              \
    nm_launch_end(&launch, result);                                                             \
    return result

int nm_hook_cuLaunchKernel(nm_cu_function function, unsigned x, unsigned y, unsigned z,
                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                           nm_cu_stream stream, void **arguments, void **extra)
{
    THROUGH_GATE(function, blocks_of(x, y, z), stream, false,
                 nm_real_cuLaunchKernel(function, x, y, z, block_x, block_y, block_z, shared,
                                        stream, arguments, extra));
}

int nm_hook_cuLaunchKernel_ptsz(nm_cu_function function, unsigned x, unsigned y, unsigned z,
                                unsigned block_x, unsigned block_y, unsigned block_z,
                                unsigned shared, nm_cu_stream stream, void **arguments,
                                void **extra)
{
    THROUGH_GATE(function, blocks_of(x, y, z), stream, true,
                 nm_real_cuLaunchKernel_ptsz(function, x, y, z, block_x, block_y, block_z, shared,
                                             stream, arguments, extra));
}

static uint64_t blocks_of_config(const nm_cu_launch_config *config)
{
    return config != NULL ? blocks_of(config->grid_x, config->grid_y, config->grid_z) : 0;
}

static nm_cu_stream stream_of_config(const nm_cu_launch_config *config)
{
    return config != NULL ? config->stream : NULL;
}

int nm_hook_cuLaunchKernelEx(const nm_cu_launch_config *config, nm_cu_function function,
                             void **arguments, void **extra)
{
    THROUGH_GATE(function, blocks_of_config(config), stream_of_config(config), false,
                 nm_real_cuLaunchKernelEx(config, function, arguments, extra));
}

int nm_hook_cuLaunchKernelEx_ptsz(const nm_cu_launch_config *config, nm_cu_function function,
                                  void **arguments, void **extra)
{
    THROUGH_GATE(function, blocks_of_config(config), stream_of_config(config), true,
                 nm_real_cuLaunchKernelEx_ptsz(config, function, arguments, extra));
}

int nm_hook_cuLaunchCooperativeKernel(nm_cu_function function, unsigned x, unsigned y, unsigned z,
                                      unsigned block_x, unsigned block_y, unsigned block_z,
                                      unsigned shared, nm_cu_stream stream, void **arguments)
{
    THROUGH_GATE(function, blocks_of(x, y, z), stream, false,
                 nm_real_cuLaunchCooperativeKernel(function, x, y, z, block_x, block_y, block_z,
                                                   shared, stream, arguments));
}

int nm_hook_cuLaunchCooperativeKernel_ptsz(nm_cu_function function, unsigned x, unsigned y,
                                           unsigned z, unsigned block_x, unsigned block_y,
                                           unsigned block_z, unsigned shared, nm_cu_stream stream,
                                           void **arguments)
{
    THROUGH_GATE(function, blocks_of(x, y, z), stream, true,
                 nm_real_cuLaunchCooperativeKernel_ptsz(function, x, y, z, block_x, block_y,
                                                        block_z, shared, stream, arguments));
}

/* -- the launches of CUDA before 4.0 -- */

int nm_hook_cuLaunch(nm_cu_function function)
{
    THROUGH_GATE(function, 1, NULL, false, nm_real_cuLaunch(function));
}

int nm_hook_cuLaunchGrid(nm_cu_function function, int x, int y)
{
    THROUGH_GATE(function, blocks_of((unsigned)x, (unsigned)y, 1), NULL, false,
                 nm_real_cuLaunchGrid(function, x, y));
}

int nm_hook_cuLaunchGridAsync(nm_cu_function function, int x, int y, nm_cu_stream stream)
{
    THROUGH_GATE(function, blocks_of((unsigned)x, (unsigned)y, 1), stream, false,
                 nm_real_cuLaunchGridAsync(function, x, y, stream));
}

/* -- one launch on several devices: the gates of all, in their order -- */

enum { DEVICES = 16 };

/* The stream's context is current meanwhile: the gate is that of its GPU. */
static int begin_there(struct nm_launch *launch, const nm_cu_launch_params *part)
{
    nm_cu_context context = NULL, popped;
    launch->gate = NULL;
    if (nm_real_cuStreamGetCtx(part->stream, &context) != SUCCESS ||
        nm_real_cuCtxPushCurrent_v2(context) != SUCCESS)
        return SUCCESS; /* the driver reports it */
    int result =
        nm_launch_begin(launch, part->function,
                        blocks_of(part->grid_x, part->grid_y, part->grid_z), part->stream, false);
    nm_real_cuCtxPopCurrent_v2(&popped);
    return result;
}

static void end_there(struct nm_launch *launch, int result)
{
    nm_cu_context context = NULL, popped;
    bool pushed = launch->gate != NULL &&
                  nm_real_cuStreamGetCtx(launch->stream, &context) == SUCCESS &&
                  nm_real_cuCtxPushCurrent_v2(context) == SUCCESS;
    nm_launch_end(launch, result);
    if (pushed)
        nm_real_cuCtxPopCurrent_v2(&popped);
}

int nm_hook_cuLaunchCooperativeKernelMultiDevice(nm_cu_launch_params *list, unsigned count,
                                                 unsigned flags)
{
    struct nm_launch launches[DEVICES];
    int result = SUCCESS;
    unsigned begun = 0;
    if (!nm_client_gated() || list == NULL || count > DEVICES)
        return nm_real_cuLaunchCooperativeKernelMultiDevice(list, count, flags);
    for (; begun < count && result == SUCCESS; begun++)
        result = begin_there(&launches[begun], &list[begun]);
    if (result == SUCCESS)
        result = nm_real_cuLaunchCooperativeKernelMultiDevice(list, count, flags);
    while (begun > 0)
        end_there(&launches[--begun], result);
    return result;
}
