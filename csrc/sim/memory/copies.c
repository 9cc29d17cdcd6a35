/* copies.c: copying and filling.
 *
 * Knows: which bytes are kept (blocks.c); other bytes, and all of arrays, read as zeros. Must not
 * know: the owner of a block.
 *
 * The bytes are copied by the call. Before it copies from or to the host, a call waits until the
 * program's functions in that stream have ended, since they may write the bytes; nothing on the
 * device writes. The time that the copy takes follows in the order of its stream,
 * and a call that is not asynchronous waits for its end. On a captured stream nothing is done.
 */
#include <string.h>

#include "sim/driver/driver.h"
#include "sim/timeline/timeline.h"

typedef enum {
    ON_HOST,
    ON_DEVICE,
    ANYWHERE, /* by the address itself */
    IN_ARRAY,
} place;

/* One end of a copy on the host: `kept` bytes, and zeros after them. */
typedef struct {
    char *bytes;
    uint64_t kept;
} end;

/* False for a device address that is in no block. */
static bool find(place where, uint64_t address, uint64_t count, bool for_writing, end *out) {
    *out = (end){NULL, 0};
    if (where == IN_ARRAY) return true;
    if (where == ON_DEVICE || (where == ANYWHERE && nm_block_at(address)))
        return nm_block_bytes(address, count, for_writing, &out->bytes, &out->kept);
    *out = (end){(char *)(uintptr_t)address, count};
    return out->bytes != NULL;
}

static nm_cu_result copy_row(place to, uint64_t target, place from, uint64_t source,
                             uint64_t count) {
    end into, out_of;
    NM_LOCK();
    bool found = find(to, target, count, true, &into) && find(from, source, count, false, &out_of);
    NM_UNLOCK();
    if (!found) return NM_CUDA_ERROR_INVALID_VALUE;
    uint64_t both = into.kept < out_of.kept ? into.kept : out_of.kept;
    if (both > 0) memmove(into.bytes, out_of.bytes, both);
    if (into.kept > both) memset(into.bytes + both, 0, into.kept - both);
    return NM_CUDA_SUCCESS;
}

/* ---- time
   ----------------------------------------------------------------------------- */

typedef enum { ASYNCHRONOUS, SYNCHRONOUS } timing;

static bool is_host(place where, uint64_t address) {
    if (where != ANYWHERE) return where == ON_HOST;
    const nm_sim_block *block = nm_block_at(address);
    return !block || block->use == NM_HOST;
}

/* Before the bytes. CUDA_SUCCESS and true where the stream is being captured. */
static nm_cu_result before_bytes(nm_cu_stream handle, nm_copy_engine engine, int type,
                                 uint64_t duration_ns, bool *captured) {
    nm_context *context;
    nm_stream *stream;
    NM_LOCK();
    nm_cu_result result = nm_stream_use(handle, &context, &stream);
    *captured = result == NM_CUDA_SUCCESS && nm_capture_node(handle, type, duration_ns);
    bool waits = result == NM_CUDA_SUCCESS && !*captured && engine != NM_IN_DEVICE;
    if (waits) result = nm_wait_for_functions(stream);
    NM_UNLOCK();
    return result;
}

/* After them. */
static nm_cu_result add_time(nm_cu_stream handle, nm_copy_engine engine, uint64_t bytes,
                             timing when) {
    nm_context *context;
    nm_stream *stream;
    NM_LOCK();
    nm_cu_result result = nm_stream_use(handle, &context, &stream);
    if (result == NM_CUDA_SUCCESS)
        result =
            nm_add_copy(stream, engine, bytes, when == SYNCHRONOUS && engine != NM_IN_DEVICE);
    NM_UNLOCK();
    return result;
}

static nm_copy_engine engine_between(place to, uint64_t target, place from, uint64_t source) {
    NM_LOCK();
    bool from_host = is_host(from, source), to_host = is_host(to, target);
    NM_UNLOCK();
    return from_host ? NM_TO_DEVICE : to_host ? NM_TO_HOST : NM_IN_DEVICE;
}

static nm_cu_result copy(place to, uint64_t target, place from, uint64_t source, uint64_t count,
                         nm_cu_stream stream, timing when) {
    nm_context *context;
    bool captured;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS || count == 0) return result;
    nm_copy_engine engine = engine_between(to, target, from, source);
    result = before_bytes(stream, engine, NM_CU_GRAPH_NODE_TYPE_MEMCPY,
                          nm_copy_ns(context->device, engine, count), &captured);
    if (result != NM_CUDA_SUCCESS || captured) return result;
    result = copy_row(to, target, from, source, count);
    return result == NM_CUDA_SUCCESS ? add_time(stream, engine, count, when) : result;
}

/* ---- rows of bytes
   ----------------------------------------------------------------------------- */

#define HOST(pointer) (uintptr_t)(pointer)

NM_CU cuMemcpy(nm_cu_deviceptr to, nm_cu_deviceptr from, size_t count) {
    return copy(ANYWHERE, to, ANYWHERE, from, count, NULL, SYNCHRONOUS);
}
NM_PER_THREAD(cuMemcpy, "_ptds");
NM_CU cuMemcpyAsync(nm_cu_deviceptr to, nm_cu_deviceptr from, size_t count, nm_cu_stream stream) {
    return copy(ANYWHERE, to, ANYWHERE, from, count, stream, ASYNCHRONOUS);
}
NM_PER_THREAD_AT(cuMemcpyAsync, NM_ARGUMENT_4);
NM_CU cuMemcpyWithAttributesAsync(nm_cu_deviceptr to, nm_cu_deviceptr from, size_t count,
                                  void *attributes, nm_cu_stream stream) {
    (void)attributes;
    return copy(ANYWHERE, to, ANYWHERE, from, count, stream, ASYNCHRONOUS);
}
NM_PER_THREAD_AT(cuMemcpyWithAttributesAsync, NM_ARGUMENT_5);
NM_CU cuMemcpyHtoD_v2(nm_cu_deviceptr to, const void *from, size_t count) {
    return copy(ON_DEVICE, to, ON_HOST, HOST(from), count, NULL, SYNCHRONOUS);
}
NM_PER_THREAD(cuMemcpyHtoD_v2, "_ptds");
NM_CU cuMemcpyHtoDAsync_v2(nm_cu_deviceptr to, const void *from, size_t count,
                           nm_cu_stream stream) {
    return copy(ON_DEVICE, to, ON_HOST, HOST(from), count, stream, ASYNCHRONOUS);
}
NM_PER_THREAD_AT(cuMemcpyHtoDAsync_v2, NM_ARGUMENT_4);
NM_CU cuMemcpyDtoH_v2(void *to, nm_cu_deviceptr from, size_t count) {
    return copy(ON_HOST, HOST(to), ON_DEVICE, from, count, NULL, SYNCHRONOUS);
}
NM_PER_THREAD(cuMemcpyDtoH_v2, "_ptds");
NM_CU cuMemcpyDtoHAsync_v2(void *to, nm_cu_deviceptr from, size_t count, nm_cu_stream stream) {
    return copy(ON_HOST, HOST(to), ON_DEVICE, from, count, stream, ASYNCHRONOUS);
}
NM_PER_THREAD_AT(cuMemcpyDtoHAsync_v2, NM_ARGUMENT_4);
NM_CU cuMemcpyDtoD_v2(nm_cu_deviceptr to, nm_cu_deviceptr from, size_t count) {
    return copy(ON_DEVICE, to, ON_DEVICE, from, count, NULL, SYNCHRONOUS);
}
NM_PER_THREAD(cuMemcpyDtoD_v2, "_ptds");
NM_CU cuMemcpyDtoDAsync_v2(nm_cu_deviceptr to, nm_cu_deviceptr from, size_t count,
                           nm_cu_stream stream) {
    return copy(ON_DEVICE, to, ON_DEVICE, from, count, stream, ASYNCHRONOUS);
}
NM_PER_THREAD_AT(cuMemcpyDtoDAsync_v2, NM_ARGUMENT_4);
NM_CU cuMemcpyPeer(nm_cu_deviceptr to, nm_cu_context to_context, nm_cu_deviceptr from,
                   nm_cu_context from_context, size_t count) {
    (void)to_context, (void)from_context;
    return copy(ON_DEVICE, to, ON_DEVICE, from, count, NULL, SYNCHRONOUS);
}
NM_PER_THREAD(cuMemcpyPeer, "_ptds");
NM_CU cuMemcpyPeerAsync(nm_cu_deviceptr to, nm_cu_context to_context, nm_cu_deviceptr from,
                        nm_cu_context from_context, size_t count, nm_cu_stream stream) {
    (void)to_context, (void)from_context;
    return copy(ON_DEVICE, to, ON_DEVICE, from, count, stream, ASYNCHRONOUS);
}
NM_PER_THREAD_AT(cuMemcpyPeerAsync, NM_ARGUMENT_6);

NM_CU cuMemcpyHtoD(unsigned to, const void *from, unsigned count) {
    return cuMemcpyHtoD_v2(to, from, count);
}
NM_CU cuMemcpyDtoH(void *to, unsigned from, unsigned count) {
    return cuMemcpyDtoH_v2(to, from, count);
}
NM_CU cuMemcpyDtoD(unsigned to, unsigned from, unsigned count) {
    return cuMemcpyDtoD_v2(to, from, count);
}

NM_CU cuMemcpyBatchAsync_v2(nm_cu_deviceptr *to, nm_cu_deviceptr *from, size_t *counts,
                            size_t batch, void *attributes, size_t *attribute_indices,
                            size_t attribute_count, nm_cu_stream stream) {
    (void)attributes, (void)attribute_indices, (void)attribute_count;
    if (!to || !from || !counts || batch == 0) return NM_CUDA_ERROR_INVALID_VALUE;
    nm_cu_result result = NM_CUDA_SUCCESS;
    for (size_t index = 0; index < batch && result == NM_CUDA_SUCCESS; index++) {
        result =
            copy(ANYWHERE, to[index], ANYWHERE, from[index], counts[index], stream, ASYNCHRONOUS);
    }
    return result;
}
NM_PER_THREAD_AT(cuMemcpyBatchAsync_v2, NM_ARGUMENT_8);
NM_CU cuMemcpyBatchAsync(nm_cu_deviceptr *to, nm_cu_deviceptr *from, size_t *counts, size_t batch,
                         void *attributes, size_t *attribute_indices, size_t attribute_count,
                         size_t *failed, nm_cu_stream stream) {
    if (failed) *failed = SIZE_MAX;
    return cuMemcpyBatchAsync_v2(to, from, counts, batch, attributes, attribute_indices,
                                 attribute_count, stream);
}
NM_PER_THREAD_AT(cuMemcpyBatchAsync, NM_ARGUMENT_9);

/* ---- boxes
   ----------------------------------------------------------------------------- */

/* One side of a copy: rows of `pitch` bytes, planes of `height` rows. */
typedef struct {
    place where;
    uint64_t base;
    uint64_t pitch, height;
} side;

static bool side_of(side *out, int type, const void *host, nm_cu_deviceptr device, size_t pitch,
                    size_t height) {
    *out = (side){.pitch = pitch, .height = height};
    switch (type) {
    case NM_CU_MEMORYTYPE_HOST: out->where = ON_HOST, out->base = HOST(host); return host != NULL;
    case NM_CU_MEMORYTYPE_DEVICE: out->where = ON_DEVICE, out->base = device; return device != 0;
    case NM_CU_MEMORYTYPE_UNIFIED: out->where = ANYWHERE, out->base = device; return device != 0;
    case NM_CU_MEMORYTYPE_ARRAY: out->where = IN_ARRAY; return true;
    default: return false;
    }
}

static uint64_t row_at(const side *side, size_t x, size_t y, size_t z) {
    return side->base + x + (y + z * side->height) * side->pitch;
}

static nm_cu_result copy_box(const nm_cu_memcpy3d *box, nm_cu_stream stream, timing when) {
    nm_context *context;
    bool captured;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    side to, from;
    if (!side_of(&to, box->dst_memory_type, box->dst_host, box->dst_device, box->dst_pitch,
                 box->dst_height) ||
        !side_of(&from, box->src_memory_type, box->src_host, box->src_device, box->src_pitch,
                 box->src_height))
        return NM_CUDA_ERROR_INVALID_VALUE;
    nm_copy_engine engine = engine_between(to.where, to.base, from.where, from.base);
    uint64_t bytes = box->width_bytes * box->height * box->depth;
    result = before_bytes(stream, engine, NM_CU_GRAPH_NODE_TYPE_MEMCPY,
                          nm_copy_ns(context->device, engine, bytes), &captured);
    if (result != NM_CUDA_SUCCESS || captured) return result;
    for (size_t z = 0; z < box->depth; z++) {
        for (size_t y = 0; y < box->height && result == NM_CUDA_SUCCESS; y++) {
            uint64_t target = row_at(&to, box->dst_x_bytes, box->dst_y + y, box->dst_z + z);
            uint64_t source = row_at(&from, box->src_x_bytes, box->src_y + y, box->src_z + z);
            result = copy_row(to.where, target, from.where, source, box->width_bytes);
        }
    }
    return result == NM_CUDA_SUCCESS ? add_time(stream, engine, bytes, when) : result;
}

static nm_cu_result copy_rectangle(const nm_cu_memcpy2d *flat, nm_cu_stream stream, timing when) {
    if (!flat) return NM_CUDA_ERROR_INVALID_VALUE;
    nm_cu_memcpy3d box = {
        .src_x_bytes = flat->src_x_bytes,
        .src_y = flat->src_y,
        .src_memory_type = flat->src_memory_type,
        .src_host = flat->src_host,
        .src_device = flat->src_device,
        .src_pitch = flat->src_pitch ? flat->src_pitch : flat->width_bytes,
        .dst_x_bytes = flat->dst_x_bytes,
        .dst_y = flat->dst_y,
        .dst_memory_type = flat->dst_memory_type,
        .dst_host = flat->dst_host,
        .dst_device = flat->dst_device,
        .dst_pitch = flat->dst_pitch ? flat->dst_pitch : flat->width_bytes,
        .width_bytes = flat->width_bytes,
        .height = flat->height,
        .depth = 1,
    };
    return copy_box(&box, stream, when);
}

NM_CU cuMemcpy2D_v2(const nm_cu_memcpy2d *flat) { return copy_rectangle(flat, NULL, SYNCHRONOUS); }
NM_PER_THREAD(cuMemcpy2D_v2, "_ptds");
NM_CU cuMemcpy2DUnaligned_v2(const nm_cu_memcpy2d *flat) {
    return copy_rectangle(flat, NULL, SYNCHRONOUS);
}
NM_PER_THREAD(cuMemcpy2DUnaligned_v2, "_ptds");
NM_CU cuMemcpy2DAsync_v2(const nm_cu_memcpy2d *flat, nm_cu_stream stream) {
    return copy_rectangle(flat, stream, ASYNCHRONOUS);
}
NM_PER_THREAD_AT(cuMemcpy2DAsync_v2, NM_ARGUMENT_2);
NM_CU cuMemcpy3D_v2(const nm_cu_memcpy3d *box) {
    return box ? copy_box(box, NULL, SYNCHRONOUS) : NM_CUDA_ERROR_INVALID_VALUE;
}
NM_PER_THREAD(cuMemcpy3D_v2, "_ptds");
NM_CU cuMemcpy3DAsync_v2(const nm_cu_memcpy3d *box, nm_cu_stream stream) {
    return box ? copy_box(box, stream, ASYNCHRONOUS) : NM_CUDA_ERROR_INVALID_VALUE;
}
NM_PER_THREAD_AT(cuMemcpy3DAsync_v2, NM_ARGUMENT_2);
/* The same structure, with contexts where this one has reserved fields. */
NM_CU cuMemcpy3DPeer(const nm_cu_memcpy3d *box) { return cuMemcpy3D_v2(box); }
NM_PER_THREAD(cuMemcpy3DPeer, "_ptds");
NM_CU cuMemcpy3DPeerAsync(const nm_cu_memcpy3d *box, nm_cu_stream stream) {
    return cuMemcpy3DAsync_v2(box, stream);
}
NM_PER_THREAD_AT(cuMemcpy3DPeerAsync, NM_ARGUMENT_2);

/* ---- arrays: no bytes of theirs are kept
   ------------------------------------------------------------------------- */

static nm_cu_result with_array(nm_cu_array array, place to, uint64_t target, place from,
                               uint64_t source, size_t count, nm_cu_stream stream, timing when) {
    if (nm_is_ready() && !nm_object_of(array, NM_ARRAY)) return NM_CUDA_ERROR_INVALID_HANDLE;
    return copy(to, target, from, source, count, stream, when);
}

NM_CU cuMemcpyHtoA_v2(nm_cu_array to, size_t offset, const void *from, size_t count) {
    (void)offset;
    return with_array(to, IN_ARRAY, 0, ON_HOST, HOST(from), count, NULL, SYNCHRONOUS);
}
NM_PER_THREAD(cuMemcpyHtoA_v2, "_ptds");
NM_CU cuMemcpyHtoAAsync_v2(nm_cu_array to, size_t offset, const void *from, size_t count,
                           nm_cu_stream stream) {
    (void)offset;
    return with_array(to, IN_ARRAY, 0, ON_HOST, HOST(from), count, stream, ASYNCHRONOUS);
}
NM_PER_THREAD_AT(cuMemcpyHtoAAsync_v2, NM_ARGUMENT_5);
NM_CU cuMemcpyAtoH_v2(void *to, nm_cu_array from, size_t offset, size_t count) {
    (void)offset;
    return with_array(from, ON_HOST, HOST(to), IN_ARRAY, 0, count, NULL, SYNCHRONOUS);
}
NM_PER_THREAD(cuMemcpyAtoH_v2, "_ptds");
NM_CU cuMemcpyAtoHAsync_v2(void *to, nm_cu_array from, size_t offset, size_t count,
                           nm_cu_stream stream) {
    (void)offset;
    return with_array(from, ON_HOST, HOST(to), IN_ARRAY, 0, count, stream, ASYNCHRONOUS);
}
NM_PER_THREAD_AT(cuMemcpyAtoHAsync_v2, NM_ARGUMENT_5);
NM_CU cuMemcpyDtoA_v2(nm_cu_array to, size_t offset, nm_cu_deviceptr from, size_t count) {
    (void)offset;
    return with_array(to, IN_ARRAY, 0, ON_DEVICE, from, count, NULL, SYNCHRONOUS);
}
NM_PER_THREAD(cuMemcpyDtoA_v2, "_ptds");
NM_CU cuMemcpyAtoD_v2(nm_cu_deviceptr to, nm_cu_array from, size_t offset, size_t count) {
    (void)offset;
    return with_array(from, ON_DEVICE, to, IN_ARRAY, 0, count, NULL, SYNCHRONOUS);
}
NM_PER_THREAD(cuMemcpyAtoD_v2, "_ptds");
NM_CU cuMemcpyAtoA_v2(nm_cu_array to, size_t to_offset, nm_cu_array from, size_t from_offset,
                      size_t count) {
    (void)to_offset, (void)from_offset;
    if (nm_is_ready() && !nm_object_of(from, NM_ARRAY)) return NM_CUDA_ERROR_INVALID_HANDLE;
    return with_array(to, IN_ARRAY, 0, IN_ARRAY, 0, count, NULL, SYNCHRONOUS);
}
NM_PER_THREAD(cuMemcpyAtoA_v2, "_ptds");

/* ---- filling
   ----------------------------------------------------------------------------- */

/* `count` elements of `width` bytes. A block without a write is zeros already. The host does not
   wait for a fill, nor for a copy within the device. */
static nm_cu_result fill_row(uint64_t target, unsigned value, unsigned width, uint64_t count) {
    end into;
    NM_LOCK();
    bool found = find(ON_DEVICE, target, count * width, value != 0, &into);
    NM_UNLOCK();
    if (!found || target % width != 0) return NM_CUDA_ERROR_INVALID_VALUE;
    if (width == 1 && into.kept > 0) memset(into.bytes, (int)value, into.kept);
    for (uint64_t at = 0; width > 1 && at + width <= into.kept; at += width)
        memcpy(into.bytes + at, &value, width);
    return NM_CUDA_SUCCESS;
}

static nm_cu_result fill(uint64_t target, size_t pitch, unsigned value, unsigned width,
                         size_t columns, size_t rows, nm_cu_stream stream) {
    nm_context *context;
    bool captured;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (columns >= NM_SIM_MEMORY_LIMIT_BYTES) return NM_CUDA_ERROR_INVALID_VALUE;
    uint64_t bytes = (uint64_t)columns * width * rows;
    result = before_bytes(stream, NM_IN_DEVICE, NM_CU_GRAPH_NODE_TYPE_MEMSET,
                          nm_copy_ns(context->device, NM_IN_DEVICE, bytes), &captured);
    if (result != NM_CUDA_SUCCESS || captured) return result;
    for (size_t row = 0; columns > 0 && row < rows && result == NM_CUDA_SUCCESS; row++) {
        result = fill_row(target + row * pitch, value, width, columns);
    }
    return result == NM_CUDA_SUCCESS ? add_time(stream, NM_IN_DEVICE, bytes, ASYNCHRONOUS) : result;
}

/* The six entry points of one element type. The first CUDA's take 32-bit addresses and counts. */
#define FILLERS(bits, type) \
    NM_CU cuMemsetD##bits##_v2(nm_cu_deviceptr to, type value, size_t count) { \
        return fill(to, 0, value, bits / 8, count, 1, NULL); \
    } \
    NM_PER_THREAD(cuMemsetD##bits##_v2, "_ptds"); \
    NM_CU cuMemsetD##bits(unsigned to, type value, unsigned count) { \
        return fill(to, 0, value, bits / 8, count, 1, NULL); \
    } \
    NM_CU cuMemsetD##bits##Async(nm_cu_deviceptr to, type value, size_t count, \
                                 nm_cu_stream stream) { \
        return fill(to, 0, value, bits / 8, count, 1, stream); \
    } \
    NM_PER_THREAD_AT(cuMemsetD##bits##Async, NM_ARGUMENT_4); \
    NM_CU cuMemsetD2D##bits##_v2(nm_cu_deviceptr to, size_t pitch, type value, size_t width, \
                                 size_t height) { \
        return fill(to, pitch, value, bits / 8, width, height, NULL); \
    } \
    NM_PER_THREAD(cuMemsetD2D##bits##_v2, "_ptds"); \
    NM_CU cuMemsetD2D##bits##Async(nm_cu_deviceptr to, size_t pitch, type value, size_t width, \
                                   size_t height, nm_cu_stream stream) { \
        return fill(to, pitch, value, bits / 8, width, height, stream); \
    } \
    NM_PER_THREAD_AT(cuMemsetD2D##bits##Async, NM_ARGUMENT_6)

FILLERS(8, unsigned char);
FILLERS(16, unsigned short);
FILLERS(32, unsigned);
