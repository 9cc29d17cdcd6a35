/* host_defines.h: in place of the header of this name, which is the compiler nvcc's and not the
 * runtime's: the words with which the runtime's public headers decorate declarations mean
 * nothing to a C compiler. */
#ifndef NM_SIM_HOST_DEFINES_H
#define NM_SIM_HOST_DEFINES_H

#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __align__(bytes)
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __host__
#define __device__
#define __tile_builtin__
#define __specialization_static static

#endif
