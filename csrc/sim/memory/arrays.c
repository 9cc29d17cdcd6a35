/* arrays.c: arrays, mipmapped arrays, and sparse ones, whose tiles are mapped from physical memory.
 *
 * Knows: how many bytes an array takes: exactly its elements, where a real driver rounds up. Must
 * not know: textures.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/driver/driver.h"

/* A tile, or a mip tail, that has memory. */
typedef struct {
    uint64_t key; /* which one */
    nm_physical *physical;
} tile;

/* An array, a mipmapped array, or a level of one. */
typedef struct {
    nm_object object;
    nm_cu_array3d_descriptor descriptor;
    int device;
    uint64_t bytes; /* charged; 0 for levels, sparse arrays and imported ones */
    unsigned levels;
    void *mipmap;        /* a level's whole */
    nm_object **level_of; /* a mipmap's levels, made when first asked for */
    tile *tiles;
    size_t tile_count, tile_room;
} array;
_Static_assert(sizeof(array) <= NM_OBJECT_BYTES, "an object of the arena");

enum { NO_MEMORY_OF_ITS_OWN = NM_CUDA_ARRAY3D_SPARSE | NM_CUDA_ARRAY3D_DEFERRED_MAPPING };

/* ---- sizes
   ----------------------------------------------------------------------------- */

static unsigned format_bytes(int format) {
    switch (format) {
    case NM_CU_AD_FORMAT_UNSIGNED_INT8:
    case NM_CU_AD_FORMAT_SIGNED_INT8: return 1;
    case NM_CU_AD_FORMAT_UNSIGNED_INT16:
    case NM_CU_AD_FORMAT_SIGNED_INT16:
    case NM_CU_AD_FORMAT_HALF: return 2;
    case NM_CU_AD_FORMAT_UNSIGNED_INT32:
    case NM_CU_AD_FORMAT_SIGNED_INT32:
    case NM_CU_AD_FORMAT_FLOAT: return 4;
    default: return 0;
    }
}

static bool is_valid(const nm_cu_array3d_descriptor *desc) {
    enum { EXTENT = 1 << 20 };
    bool channels = desc->num_channels == 1 || desc->num_channels == 2 || desc->num_channels == 4;
    bool extents = desc->width >= 1 && desc->width <= EXTENT && desc->height <= EXTENT &&
                   desc->depth <= EXTENT;
    return channels && extents && format_bytes(desc->format) > 0 &&
           !(desc->depth > 0 && desc->height == 0 && !(desc->flags & NM_CUDA_ARRAY3D_LAYERED));
}

static size_t at_level(size_t extent, unsigned level) {
    return extent == 0 ? 0 : extent >> level ? extent >> level : 1;
}

static nm_cu_array3d_descriptor level_descriptor(const nm_cu_array3d_descriptor *desc,
                                                 unsigned level) {
    nm_cu_array3d_descriptor scaled = *desc;
    scaled.width = at_level(desc->width, level);
    scaled.height = at_level(desc->height, level);
    if (!(desc->flags & NM_CUDA_ARRAY3D_LAYERED)) scaled.depth = at_level(desc->depth, level);
    return scaled;
}

/* NM_SIM_MEMORY_LIMIT_BYTES for all that is too much. */
static uint64_t level_bytes(const nm_cu_array3d_descriptor *desc) {
    uint64_t plane = (uint64_t)desc->width * (desc->height ? desc->height : 1);
    uint64_t element = (uint64_t)format_bytes(desc->format) * desc->num_channels;
    uint64_t depth = desc->depth ? desc->depth : 1;
    return plane > NM_SIM_MEMORY_LIMIT_BYTES / depth / element ? NM_SIM_MEMORY_LIMIT_BYTES
                                                               : plane * depth * element;
}

static uint64_t all_bytes(const nm_cu_array3d_descriptor *desc, unsigned levels) {
    uint64_t bytes = 0;
    for (unsigned level = 0; level < levels && bytes < NM_SIM_MEMORY_LIMIT_BYTES; level++) {
        nm_cu_array3d_descriptor scaled = level_descriptor(desc, level);
        bytes += level_bytes(&scaled);
    }
    return bytes;
}

/* ---- making and ending
   ----------------------------------------------------------------------------- */

static nm_cu_result create(void **out, const nm_cu_array3d_descriptor *desc, nm_type type,
                           unsigned levels, bool imported) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out || !desc || !is_valid(desc)) return NM_CUDA_ERROR_INVALID_VALUE;
    uint64_t bytes = imported || (desc->flags & NO_MEMORY_OF_ITS_OWN) ? 0 : all_bytes(desc, levels);
    nm_delay(context->device);
    NM_LOCK();
    array *created = nm_object_new(type, context);
    result = !created ? NM_CUDA_ERROR_OUT_OF_MEMORY
             : bytes  ? nm_charge(context->device, NM_SIM_KIND_array, bytes)
                      : NM_CUDA_SUCCESS;
    if (result == NM_CUDA_SUCCESS) {
        created->descriptor = *desc;
        created->device = context->device;
        created->bytes = bytes;
        created->levels = levels;
        *out = created;
    } else if (created) {
        nm_object_free(created);
    }
    NM_UNLOCK();
    return result;
}

void nm_array_release(nm_object *object) {
    array *ending = (array *)(void *)object;
    for (size_t index = 0; index < ending->tile_count; index++)
        nm_physical_detach(ending->tiles[index].physical);
    for (unsigned level = 0; ending->level_of && level < ending->levels; level++) {
        if (ending->level_of[level]) nm_object_free(ending->level_of[level]);
    }
    free(ending->tiles);
    free(ending->level_of);
    nm_give_back(ending->device, NM_SIM_KIND_array, ending->bytes);
    nm_object_free(ending);
}

static nm_cu_result destroy(void *handle, nm_type type) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    array *ending = nm_object_of(handle, type);
    bool whole = ending && !ending->mipmap;
    if (whole) nm_array_release(&ending->object);
    NM_UNLOCK();
    return whole ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_HANDLE;
}

/* ---- arrays
   ----------------------------------------------------------------------------- */

NM_CU cuArray3DCreate_v2(nm_cu_array *out, const nm_cu_array3d_descriptor *desc) {
    return create(out, desc, NM_ARRAY, 1, false);
}

NM_CU cuArrayCreate_v2(nm_cu_array *out, const nm_cu_array_descriptor *desc) {
    nm_cu_array3d_descriptor full = {0};
    if (desc)
        full = (nm_cu_array3d_descriptor){desc->width,  desc->height,       0,
                                          desc->format, desc->num_channels, 0};
    return create(out, desc ? &full : NULL, NM_ARRAY, 1, false);
}

NM_CU cuArray3DCreate(nm_cu_array *out, const nm_cu_array3d_descriptor_v1 *desc) {
    nm_cu_array3d_descriptor full = {0};
    if (desc)
        full = (nm_cu_array3d_descriptor){desc->width,  desc->height,       desc->depth,
                                          desc->format, desc->num_channels, desc->flags};
    return create(out, desc ? &full : NULL, NM_ARRAY, 1, false);
}

NM_CU cuArrayCreate(nm_cu_array *out, const nm_cu_array_descriptor_v1 *desc) {
    nm_cu_array3d_descriptor full = {0};
    if (desc)
        full = (nm_cu_array3d_descriptor){desc->width,  desc->height,       0,
                                          desc->format, desc->num_channels, 0};
    return create(out, desc ? &full : NULL, NM_ARRAY, 1, false);
}

NM_CU cuArrayDestroy(nm_cu_array handle) { return destroy(handle, NM_ARRAY); }

NM_CU cuArray3DGetDescriptor_v2(nm_cu_array3d_descriptor *out, nm_cu_array handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    const array *asked = nm_object_of(handle, NM_ARRAY);
    if (!asked) return NM_CUDA_ERROR_INVALID_HANDLE;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = asked->descriptor;
    return NM_CUDA_SUCCESS;
}

NM_CU cuArrayGetDescriptor_v2(nm_cu_array_descriptor *out, nm_cu_array handle) {
    nm_cu_array3d_descriptor full;
    nm_cu_result result = cuArray3DGetDescriptor_v2(&full, handle);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = (nm_cu_array_descriptor){full.width, full.height, full.format, full.num_channels};
    return NM_CUDA_SUCCESS;
}

static nm_cu_result requirements(nm_cu_array_memory_requirements *out, void *handle, nm_type type) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    const array *asked = nm_object_of(handle, type);
    if (!asked) return NM_CUDA_ERROR_INVALID_HANDLE;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = (nm_cu_array_memory_requirements){.size = all_bytes(&asked->descriptor, asked->levels),
                                             .alignment = NM_PITCH_BYTES};
    return NM_CUDA_SUCCESS;
}
NM_CU cuArrayGetMemoryRequirements(nm_cu_array_memory_requirements *out, nm_cu_array handle,
                                   nm_cu_device device) {
    (void)device;
    return requirements(out, handle, NM_ARRAY);
}
NM_CU cuMipmappedArrayGetMemoryRequirements(nm_cu_array_memory_requirements *out,
                                            nm_cu_mipmapped_array handle, nm_cu_device device) {
    (void)device;
    return requirements(out, handle, NM_MIPMAP);
}

static nm_cu_result sparse_properties(nm_cu_array_sparse_properties *out, void *handle,
                                      nm_type type) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    const array *asked = nm_object_of(handle, type);
    if (!asked) return NM_CUDA_ERROR_INVALID_HANDLE;
    if (!out || !(asked->descriptor.flags & NM_CUDA_ARRAY3D_SPARSE))
        return NM_CUDA_ERROR_INVALID_VALUE;
    *out = (nm_cu_array_sparse_properties){.tile_width = 128,
                                           .tile_height = 128,
                                           .tile_depth = 1,
                                           .miptail_first_level = asked->levels,
                                           .miptail_size = 0};
    return NM_CUDA_SUCCESS;
}
NM_CU cuArrayGetSparseProperties(nm_cu_array_sparse_properties *out, nm_cu_array handle) {
    return sparse_properties(out, handle, NM_ARRAY);
}
NM_CU cuMipmappedArrayGetSparseProperties(nm_cu_array_sparse_properties *out,
                                          nm_cu_mipmapped_array handle) {
    return sparse_properties(out, handle, NM_MIPMAP);
}

/* ---- mipmapped arrays
   ----------------------------------------------------------------------------- */

static unsigned most_levels(const nm_cu_array3d_descriptor *desc) {
    size_t largest = desc->width > desc->height ? desc->width : desc->height;
    if (!(desc->flags & NM_CUDA_ARRAY3D_LAYERED) && desc->depth > largest) largest = desc->depth;
    unsigned levels = 1;
    while (largest >>= 1) levels++;
    return levels;
}

static unsigned clamped_levels(const nm_cu_array3d_descriptor *desc, unsigned asked) {
    unsigned most = desc ? most_levels(desc) : 1;
    return asked < 1 ? 1 : asked > most ? most : asked;
}

NM_CU cuMipmappedArrayCreate(nm_cu_mipmapped_array *out, const nm_cu_array3d_descriptor *desc,
                             unsigned levels) {
    return create(out, desc, NM_MIPMAP, clamped_levels(desc, levels), false);
}

NM_CU cuMipmappedArrayDestroy(nm_cu_mipmapped_array handle) { return destroy(handle, NM_MIPMAP); }

static nm_cu_result level_array(array *whole, unsigned level, nm_cu_array *out) {
    if (!whole->level_of) whole->level_of = calloc(whole->levels, sizeof *whole->level_of);
    if (!whole->level_of) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    if (!whole->level_of[level]) {
        array *made = nm_object_new(NM_ARRAY, NULL);
        if (!made) return NM_CUDA_ERROR_OUT_OF_MEMORY;
        made->descriptor = level_descriptor(&whole->descriptor, level);
        made->device = whole->device;
        made->levels = 1;
        made->mipmap = whole;
        whole->level_of[level] = &made->object;
    }
    *out = whole->level_of[level];
    return NM_CUDA_SUCCESS;
}

NM_CU cuMipmappedArrayGetLevel(nm_cu_array *out, nm_cu_mipmapped_array handle, unsigned level) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    array *whole = nm_object_of(handle, NM_MIPMAP);
    nm_cu_result result = !whole                           ? NM_CUDA_ERROR_INVALID_HANDLE
                          : !out || level >= whole->levels ? NM_CUDA_ERROR_INVALID_VALUE
                                                           : level_array(whole, level, out);
    NM_UNLOCK();
    return result;
}

/* An array in memory that was imported: its maker paid. */
NM_CU cuExternalMemoryGetMappedMipmappedArray(
    nm_cu_mipmapped_array *out, nm_cu_external_memory handle,
    const nm_cu_external_memory_mipmapped_array_desc *desc) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!nm_object_of(handle, NM_EXTERNAL_MEMORY)) return NM_CUDA_ERROR_INVALID_HANDLE;
    if (!desc) return NM_CUDA_ERROR_INVALID_VALUE;
    return create(out, &desc->array_desc, NM_MIPMAP,
                  clamped_levels(&desc->array_desc, desc->num_levels), true);
}

/* ---- textures and surfaces: views of other objects' memory
   ---------------------------------------------------- */

static nm_cu_result create_view(uint64_t *out, const void *resource) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out || !resource) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    *out = (uintptr_t)nm_object_new(NM_VIEW, context);
    NM_UNLOCK();
    return *out ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
}

static nm_cu_result destroy_view(uint64_t handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_object *view = nm_object_of((void *)(uintptr_t)handle, NM_VIEW);
    if (view) nm_object_free(view);
    NM_UNLOCK();
    return view ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

NM_CU cuTexObjectCreate(uint64_t *out, const void *resource, const void *texture,
                        const void *view) {
    (void)view;
    return texture ? create_view(out, resource) : NM_CUDA_ERROR_INVALID_VALUE;
}
NM_CU cuTexObjectDestroy(uint64_t handle) { return destroy_view(handle); }
NM_CU cuSurfObjectCreate(uint64_t *out, const void *resource) { return create_view(out, resource); }
NM_CU cuSurfObjectDestroy(uint64_t handle) { return destroy_view(handle); }

/* ---- sparse arrays
   ----------------------------------------------------------------------------- */

/* The part of the array of a mapping: two mappings of the same part have the same key. */
static uint64_t part_key(const nm_cu_array_map_info *info) {
    unsigned char bytes[sizeof info->subresource + sizeof info->subresource_type];
    memcpy(bytes, &info->subresource, sizeof info->subresource);
    memcpy(bytes + sizeof info->subresource, &info->subresource_type,
           sizeof info->subresource_type);
    uint64_t key = UINT64_C(0xcbf29ce484222325);
    for (size_t index = 0; index < sizeof bytes; index++)
        key = (key ^ bytes[index]) * UINT64_C(0x100000001b3);
    return key;
}

static void unmap_part(array *sparse, uint64_t key) {
    for (size_t index = 0; index < sparse->tile_count; index++) {
        if (sparse->tiles[index].key != key) continue;
        nm_physical_detach(sparse->tiles[index].physical);
        sparse->tiles[index] = sparse->tiles[--sparse->tile_count];
        return;
    }
}

static nm_cu_result map_part(array *sparse, uint64_t key, nm_physical *physical) {
    if (!physical) return NM_CUDA_ERROR_INVALID_VALUE;
    unmap_part(sparse, key);
    if (sparse->tile_count == sparse->tile_room) {
        size_t room = sparse->tile_room ? sparse->tile_room * 2 : 8;
        tile *tiles = realloc(sparse->tiles, room * sizeof *tiles);
        if (!tiles) return NM_CUDA_ERROR_OUT_OF_MEMORY;
        sparse->tiles = tiles;
        sparse->tile_room = room;
    }
    sparse->tiles[sparse->tile_count++] = (tile){key, physical};
    physical->attachments++;
    return NM_CUDA_SUCCESS;
}

static nm_cu_result obey(const nm_cu_array_map_info *info) {
    bool is_mipmap = info->resource_type == NM_CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    array *sparse = nm_object_of(is_mipmap ? info->resource.mipmap : info->resource.array,
                                 is_mipmap ? NM_MIPMAP : NM_ARRAY);
    if (!sparse || !(sparse->descriptor.flags & NO_MEMORY_OF_ITS_OWN))
        return NM_CUDA_ERROR_INVALID_VALUE;
    if (info->mem_operation_type == NM_CU_MEM_OPERATION_TYPE_MAP) {
        return map_part(sparse, part_key(info),
                        nm_object_of((void *)(uintptr_t)info->mem_handle, NM_PHYSICAL));
    }
    if (info->mem_operation_type != NM_CU_MEM_OPERATION_TYPE_UNMAP)
        return NM_CUDA_ERROR_INVALID_VALUE;
    unmap_part(sparse, part_key(info));
    return NM_CUDA_SUCCESS;
}

NM_CU cuMemMapArrayAsync(nm_cu_array_map_info *infos, unsigned count, nm_cu_stream stream) {
    (void)stream;
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!infos || count == 0) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    for (unsigned index = 0; index < count && result == NM_CUDA_SUCCESS; index++)
        result = obey(&infos[index]);
    NM_UNLOCK();
    return result;
}
NM_PER_THREAD(cuMemMapArrayAsync, "_ptsz");
