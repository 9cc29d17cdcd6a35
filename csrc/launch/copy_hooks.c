/* copy_hooks.c: copies of a gated process, which count as activity.
 *
 * Knows: the copies between host and device and within devices that frameworks call. Must not know:
 * turns. A copy waits only while its process is suspended.
 */
#include "hooks/interpose.h"
#include "launch/launch.h"

int nm_hook_cuMemcpyHtoD_v2(nm_cu_deviceptr a, const void *b, size_t c)
{
    int result = nm_launch_begin_copy();
    return result != NM_CUDA_SUCCESS ? result : nm_real_cuMemcpyHtoD_v2(a, b, c);
}

int nm_hook_cuMemcpyHtoD_v2_ptds(nm_cu_deviceptr a, const void *b, size_t c)
{
    int result = nm_launch_begin_copy();
    return result != NM_CUDA_SUCCESS ? result : nm_real_cuMemcpyHtoD_v2_ptds(a, b, c);
}

int nm_hook_cuMemcpyDtoH_v2(void *a, nm_cu_deviceptr b, size_t c)
{
    int result = nm_launch_begin_copy();
    return result != NM_CUDA_SUCCESS ? result : nm_real_cuMemcpyDtoH_v2(a, b, c);
}

int nm_hook_cuMemcpyDtoH_v2_ptds(void *a, nm_cu_deviceptr b, size_t c)
{
    int result = nm_launch_begin_copy();
    return result != NM_CUDA_SUCCESS ? result : nm_real_cuMemcpyDtoH_v2_ptds(a, b, c);
}

int nm_hook_cuMemcpyHtoDAsync_v2(nm_cu_deviceptr a, const void *b, size_t c, nm_cu_stream d)
{
    int result = nm_launch_begin_copy();
    return result != NM_CUDA_SUCCESS ? result : nm_real_cuMemcpyHtoDAsync_v2(a, b, c, d);
}

int nm_hook_cuMemcpyHtoDAsync_v2_ptsz(nm_cu_deviceptr a, const void *b, size_t c, nm_cu_stream d)
{
    int result = nm_launch_begin_copy();
    return result != NM_CUDA_SUCCESS ? result : nm_real_cuMemcpyHtoDAsync_v2_ptsz(a, b, c, d);
}

int nm_hook_cuMemcpyDtoHAsync_v2(void *a, nm_cu_deviceptr b, size_t c, nm_cu_stream d)
{
    int result = nm_launch_begin_copy();
    return result != NM_CUDA_SUCCESS ? result : nm_real_cuMemcpyDtoHAsync_v2(a, b, c, d);
}

int nm_hook_cuMemcpyDtoHAsync_v2_ptsz(void *a, nm_cu_deviceptr b, size_t c, nm_cu_stream d)
{
    int result = nm_launch_begin_copy();
    return result != NM_CUDA_SUCCESS ? result : nm_real_cuMemcpyDtoHAsync_v2_ptsz(a, b, c, d);
}

int nm_hook_cuMemcpy(nm_cu_deviceptr a, nm_cu_deviceptr b, size_t c)
{
    int result = nm_launch_begin_copy();
    return result != NM_CUDA_SUCCESS ? result : nm_real_cuMemcpy(a, b, c);
}

int nm_hook_cuMemcpy_ptds(nm_cu_deviceptr a, nm_cu_deviceptr b, size_t c)
{
    int result = nm_launch_begin_copy();
    return result != NM_CUDA_SUCCESS ? result : nm_real_cuMemcpy_ptds(a, b, c);
}

int nm_hook_cuMemcpyAsync(nm_cu_deviceptr a, nm_cu_deviceptr b, size_t c, nm_cu_stream d)
{
    int result = nm_launch_begin_copy();
    return result != NM_CUDA_SUCCESS ? result : nm_real_cuMemcpyAsync(a, b, c, d);
}

int nm_hook_cuMemcpyAsync_ptsz(nm_cu_deviceptr a, nm_cu_deviceptr b, size_t c, nm_cu_stream d)
{
    int result = nm_launch_begin_copy();
    return result != NM_CUDA_SUCCESS ? result : nm_real_cuMemcpyAsync_ptsz(a, b, c, d);
}
