/* modules.c: modules, libraries, functions and kernels.
 *
 * Knows: a loaded module takes node.module_bytes, and the bytes of its image, in its context. Must
 * not know: the content of an image: any name is a function of it, and none a variable.
 *
 * A library is loaded into a context at its first use there (lazily), as real ones are.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/driver/driver.h"
#include "sim/node/older.h"

#define LONGEST_NS UINT64_C(1000000000000000) /* of a kernel */

struct nm_module {
    nm_object object;
    int device;
    uint64_t bytes;
    nm_object *library; /* that it was loaded for, NULL where the program loaded it itself */
    nm_link functions;
};
typedef struct nm_module module;

typedef struct {
    nm_object object;
    uint64_t image_bytes;
    nm_link kernels;
} library;


/* One value of an object of one type, by its handle. */
#define OBJECT_GETTER(name, out_type, object_type, type, member) \
    NM_CU name(out_type *out, void *handle) { \
        if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED; \
        const object_type *asked = nm_object_of(handle, type); \
        if (!asked) return NM_CUDA_ERROR_INVALID_HANDLE; \
        if (!out) return NM_CUDA_ERROR_INVALID_VALUE; \
        *out = asked->member; \
        return NM_CUDA_SUCCESS; \
    }

/* ---- functions
   ----------------------------------------------------------------------------- */

/* A name with sleep_ns_N, sleep_us_N or sleep_ms_N in it, also mangled: the kernel takes that time,
   on any grid. 0 for other names. */
static uint64_t duration_in(const char *name) {
    static const struct {
        const char *word;
        uint64_t unit_ns;
    } units[] = {{"sleep_ns_", 1}, {"sleep_us_", 1000}, {"sleep_ms_", 1000000}};
    for (size_t index = 0; index < sizeof units / sizeof *units; index++) {
        const char *found = strstr(name, units[index].word);
        if (!found) continue;
        uint64_t number = strtoull(found + strlen(units[index].word), NULL, 10);
        return number < LONGEST_NS / units[index].unit_ns ? number * units[index].unit_ns
                                                          : LONGEST_NS;
    }
    return 0;
}

static nm_cu_result function_named(module *owner, const char *name, nm_cu_function *out) {
    for (nm_link *link = owner->functions.next; link != &owner->functions; link = link->next) {
        nm_function *known = NM_OF(link, nm_function, object.link);
        if (strcmp(known->name, name) != 0) continue;
        *out = known;
        return NM_CUDA_SUCCESS;
    }
    nm_function *made = nm_object_new(NM_FUNCTION, NULL);
    if (!made) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    made->module = owner;
    made->name = strdup(name);
    made->duration_ns = duration_in(name);
    nm_list_add(&owner->functions, &made->object.link);
    *out = made;
    return NM_CUDA_SUCCESS;
}

static void release_functions(module *owner) {
    while (!nm_list_empty(&owner->functions)) {
        nm_function *ending = NM_OF(owner->functions.next, nm_function, object.link);
        free(ending->name);
        nm_object_free(ending);
    }
}

/* ---- modules
   ----------------------------------------------------------------------------- */

static nm_cu_result load(nm_context *context, nm_object *from, uint64_t image_bytes, module **out) {
    if (image_bytes >= NM_SIM_MEMORY_LIMIT_BYTES) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t bytes = nm_the_driver.node.state->module_bytes + image_bytes;
    nm_cu_result result = nm_charge(context->device, NM_SIM_KIND_module, bytes);
    if (result != NM_CUDA_SUCCESS) return result;
    module *loaded = nm_object_new(NM_MODULE, context);
    if (!loaded) {
        nm_give_back(context->device, NM_SIM_KIND_module, bytes);
        return NM_CUDA_ERROR_OUT_OF_MEMORY;
    }
    loaded->device = context->device;
    loaded->bytes = bytes;
    loaded->library = from;
    nm_list_init(&loaded->functions);
    *out = loaded;
    return NM_CUDA_SUCCESS;
}

void nm_module_release(nm_object *object) {
    module *ending = (module *)(void *)object;
    release_functions(ending);
    nm_give_back(ending->device, NM_SIM_KIND_module, ending->bytes);
    nm_object_free(ending);
}

static nm_cu_result load_module(nm_cu_module *out, uint64_t image_bytes) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    module *loaded = NULL;
    NM_LOCK();
    result = load(context, NULL, image_bytes, &loaded);
    NM_UNLOCK();
    if (result == NM_CUDA_SUCCESS) *out = loaded;
    return result;
}

NM_CU cuModuleLoadData(nm_cu_module *out, const void *image) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!image) return NM_CUDA_ERROR_INVALID_VALUE;
    if (*(const char *)image == '\0') return NM_CUDA_ERROR_INVALID_IMAGE;
    return load_module(out, nm_sim_image_bytes(image, UINT64_MAX));
}
NM_CU cuModuleLoadDataEx(nm_cu_module *out, const void *image, unsigned count, int *options,
                         void **values) {
    (void)options, (void)values;
    return count > 0 && !options ? NM_CUDA_ERROR_INVALID_VALUE : cuModuleLoadData(out, image);
}
NM_CU cuModuleLoadFatBinary(nm_cu_module *out, const void *image) {
    return cuModuleLoadData(out, image);
}

/* The bytes of the image in the file at `path`; false if it cannot be read. */
static bool read_image_file(const char *path, uint64_t *image_bytes) {
    FILE *file = fopen(path, "re");
    struct stat known;
    if (!file) return false;
    char *image =
        nm_sim_fstat(fileno(file), &known) == 0 ? calloc(1, (size_t)known.st_size + 1) : NULL;
    size_t got = image ? fread(image, 1, (size_t)known.st_size, file) : 0;
    *image_bytes = got > 0 ? nm_sim_image_bytes(image, got) : 0;
    free(image);
    fclose(file);
    return true;
}

NM_CU cuModuleLoad(nm_cu_module *out, const char *path) {
    uint64_t image_bytes = 0;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!path) return NM_CUDA_ERROR_INVALID_VALUE;
    return read_image_file(path, &image_bytes) ? load_module(out, image_bytes)
                                               : NM_CUDA_ERROR_FILE_NOT_FOUND;
}

NM_CU cuModuleUnload(nm_cu_module handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    module *ending = nm_object_of(handle, NM_MODULE);
    if (ending) nm_module_release(&ending->object);
    NM_UNLOCK();
    return ending ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_HANDLE;
}

NM_CU cuModuleGetFunction(nm_cu_function *out, nm_cu_module handle, const char *name) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !name || !*name) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    module *owner = nm_object_of(handle, NM_MODULE);
    nm_cu_result result = owner ? function_named(owner, name, out) : NM_CUDA_ERROR_INVALID_HANDLE;
    NM_UNLOCK();
    return result;
}

NM_CU cuModuleGetGlobal_v2(nm_cu_deviceptr *out, size_t *bytes, nm_cu_module handle,
                           const char *name) {
    (void)out, (void)bytes;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!nm_object_of(handle, NM_MODULE)) return NM_CUDA_ERROR_INVALID_HANDLE;
    return name && *name ? NM_CUDA_ERROR_NOT_FOUND : NM_CUDA_ERROR_INVALID_VALUE;
}

NM_CU cuModuleGetLoadingMode(int *out) {
    enum { LAZY = 2 };
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = LAZY;
    return NM_CUDA_SUCCESS;
}

/* ---- libraries and kernels
   ----------------------------------------------------------------------------- */

static module *module_in(const nm_object *from, nm_context *context) {
    for (nm_link *link = context->objects.next; link != &context->objects; link = link->next) {
        nm_object *object = NM_OF(link, nm_object, link);
        if (object->type == NM_MODULE && ((module *)(void *)object)->library == from)
            return (module *)(void *)object;
    }
    return NULL;
}

static nm_cu_result loaded_module(nm_object *from, nm_context *context, module **out) {
    *out = module_in(from, context);
    return *out ? NM_CUDA_SUCCESS
                : load(context, from, ((library *)(void *)from)->image_bytes, out);
}

nm_cu_result nm_library_load_into(nm_object *from, nm_context *context) {
    module *loaded;
    return loaded_module(from, context, &loaded);
}

static nm_cu_result load_library(nm_cu_library *out, uint64_t image_bytes) {
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    library *loaded = nm_object_new(NM_LIBRARY, NULL);
    if (loaded) {
        loaded->image_bytes = image_bytes;
        nm_list_init(&loaded->kernels);
        *out = loaded;
    }
    NM_UNLOCK();
    return loaded ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
}

NM_CU cuLibraryLoadData(nm_cu_library *out, const void *code, int *jit_options, void **jit_values,
                        unsigned jit_count, int *options, void **values, unsigned count) {
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!code) return NM_CUDA_ERROR_INVALID_VALUE;
    if (*(const char *)code == '\0') return NM_CUDA_ERROR_INVALID_IMAGE;
    return load_library(out, nm_sim_image_bytes(code, UINT64_MAX));
}
NM_CU cuLibraryLoadFromFile(nm_cu_library *out, const char *path, int *jit_options,
                            void **jit_values, unsigned jit_count, int *options, void **values,
                            unsigned count) {
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    uint64_t image_bytes = 0;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!path) return NM_CUDA_ERROR_INVALID_VALUE;
    return read_image_file(path, &image_bytes) ? load_library(out, image_bytes)
                                               : NM_CUDA_ERROR_FILE_NOT_FOUND;
}

/* In every context of the process. */
static void unload_everywhere(const library *ending) {
    for (nm_context *context = nm_context_next(NULL); context; context = nm_context_next(context)) {
        module *loaded = module_in(&ending->object, context);
        if (loaded) nm_module_release(&loaded->object);
    }
}

NM_CU cuLibraryUnload(nm_cu_library handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    library *ending = nm_object_of(handle, NM_LIBRARY);
    if (ending) unload_everywhere(ending);
    while (ending && !nm_list_empty(&ending->kernels)) {
        nm_kernel *kernel = NM_OF(ending->kernels.next, nm_kernel, object.link);
        free(kernel->name);
        nm_object_free(kernel);
    }
    if (ending) nm_object_free(ending);
    NM_UNLOCK();
    return ending ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_HANDLE;
}

static nm_cu_result kernel_named(library *owner, const char *name, nm_cu_kernel *out) {
    for (nm_link *link = owner->kernels.next; link != &owner->kernels; link = link->next) {
        nm_kernel *known = NM_OF(link, nm_kernel, object.link);
        if (strcmp(known->name, name) != 0) continue;
        *out = known;
        return NM_CUDA_SUCCESS;
    }
    nm_kernel *made = nm_object_new(NM_KERNEL, NULL);
    if (!made) return NM_CUDA_ERROR_OUT_OF_MEMORY;
    made->library = &owner->object;
    made->name = strdup(name);
    made->duration_ns = duration_in(name);
    nm_list_add(&owner->kernels, &made->object.link);
    *out = made;
    return NM_CUDA_SUCCESS;
}

NM_CU cuLibraryGetKernel(nm_cu_kernel *out, nm_cu_library handle, const char *name) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out || !name || !*name) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    library *owner = nm_object_of(handle, NM_LIBRARY);
    nm_cu_result result = owner ? kernel_named(owner, name, out) : NM_CUDA_ERROR_INVALID_HANDLE;
    NM_UNLOCK();
    return result;
}

NM_CU cuLibraryGetModule(nm_cu_module *out, nm_cu_library handle) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    module *loaded = NULL;
    NM_LOCK();
    library *owner = nm_object_of(handle, NM_LIBRARY);
    result = owner ? loaded_module(&owner->object, context, &loaded) : NM_CUDA_ERROR_INVALID_HANDLE;
    NM_UNLOCK();
    if (result == NM_CUDA_SUCCESS) *out = loaded;
    return result;
}

static nm_cu_result function_of(const nm_kernel *kernel, nm_context *context, nm_cu_function *out) {
    module *loaded;
    nm_cu_result result = loaded_module(kernel->library, context, &loaded);
    return result == NM_CUDA_SUCCESS ? function_named(loaded, kernel->name, out) : result;
}

NM_CU cuKernelGetFunction(nm_cu_function *out, nm_cu_kernel handle) {
    nm_context *context;
    nm_cu_result result = nm_use_current(&context);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    const nm_kernel *kernel = nm_object_of(handle, NM_KERNEL);
    result = kernel ? function_of(kernel, context, out) : NM_CUDA_ERROR_INVALID_HANDLE;
    NM_UNLOCK();
    return result;
}

OBJECT_GETTER(cuKernelGetLibrary, nm_cu_library, nm_kernel, NM_KERNEL, library)
OBJECT_GETTER(cuKernelGetName, const char *, nm_kernel, NM_KERNEL, name)

NM_CU cuLibraryGetGlobal(nm_cu_deviceptr *out, size_t *bytes, nm_cu_library handle,
                         const char *name) {
    (void)out, (void)bytes;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!nm_object_of(handle, NM_LIBRARY)) return NM_CUDA_ERROR_INVALID_HANDLE;
    return name && *name ? NM_CUDA_ERROR_NOT_FOUND : NM_CUDA_ERROR_INVALID_VALUE;
}
NM_CU cuLibraryGetManaged(nm_cu_deviceptr *out, size_t *bytes, nm_cu_library handle,
                          const char *name) {
    return cuLibraryGetGlobal(out, bytes, handle, name);
}

/* ---- attributes
   ----------------------------------------------------------------------------- */

/* By the numbers of CUfunction_attribute: threads, static shared, constant, local, registers,
 * PTX and binary version, cache mode, dynamic shared, carve-out. Others are 0. */
static const int function_attributes[16] = {1024, 0, 0, 0, 32, 90, 90, 0, 49152, -1};

static nm_cu_result attribute(const void *handle, int which, int *out) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    const nm_object *object = nm_object_at(handle);
    if (!object || (object->type != NM_FUNCTION && object->type != NM_KERNEL))
        return NM_CUDA_ERROR_INVALID_HANDLE;
    if (!out || which < 0 || which >= 16) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = function_attributes[which];
    return NM_CUDA_SUCCESS;
}

NM_CU cuFuncGetAttribute(int *out, int which, nm_cu_function handle) {
    return attribute(handle, which, out);
}
NM_CU cuKernelGetAttribute(int *out, int which, nm_cu_kernel handle, nm_cu_device device) {
    (void)device;
    return attribute(handle, which, out);
}
NM_CU cuFuncSetAttribute(nm_cu_function handle, int which, int value) {
    (void)value;
    int ignored;
    return attribute(handle, which, &ignored);
}
NM_CU cuKernelSetAttribute(int which, int value, nm_cu_kernel handle, nm_cu_device device) {
    (void)device;
    return cuFuncSetAttribute(handle, which, value);
}
NM_CU cuFuncSetCacheConfig(nm_cu_function handle, int config) {
    return cuFuncSetAttribute(handle, 0, config);
}
NM_CU cuFuncSetSharedMemConfig(nm_cu_function handle, int config) {
    return cuFuncSetAttribute(handle, 0, config);
}
NM_CU cuKernelSetCacheConfig(nm_cu_kernel handle, int config, nm_cu_device device) {
    (void)device;
    return cuFuncSetAttribute(handle, 0, config);
}
NM_CU cuFuncLoad(nm_cu_function handle) { return cuFuncSetAttribute(handle, 0, 0); }

NM_CU cuFuncIsLoaded(int *out, nm_cu_function handle) {
    nm_cu_result result = attribute(handle, 0, out);
    if (result == NM_CUDA_SUCCESS) *out = 1;
    return result;
}

OBJECT_GETTER(cuFuncGetModule, nm_cu_module, nm_function, NM_FUNCTION, module)
OBJECT_GETTER(cuFuncGetName, const char *, nm_function, NM_FUNCTION, name)

/* ---- occupancy
   ----------------------------------------------------------------------------- */

enum { BLOCK_THREADS = 1024 };

/* Of the current context's device; of the first one without a context. */
static const nm_sim_model *model_here(void) {
    const nm_context *context = nm_current();
    return nm_model(context ? context->device : nm_the_driver.visible[0]);
}

NM_CU cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, nm_cu_function handle,
                                                  int block_threads, size_t shared_bytes) {
    (void)shared_bytes;
    nm_cu_result result = attribute(handle, 0, out);
    if (result != NM_CUDA_SUCCESS) return result;
    if (block_threads <= 0) return NM_CUDA_ERROR_INVALID_VALUE;
    int most = nm_sim_most_blocks(model_here());
    int blocks = model_here()->threads_each / block_threads;
    *out = block_threads > BLOCK_THREADS ? 0 : blocks > most ? most : blocks;
    return NM_CUDA_SUCCESS;
}
NM_CU cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, nm_cu_function handle,
                                                           int block_threads, size_t shared_bytes,
                                                           unsigned flags) {
    (void)flags;
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(out, handle, block_threads, shared_bytes);
}

NM_CU cuOccupancyMaxPotentialBlockSize(int *grid, int *block, nm_cu_function handle,
                                       void *shared_of, size_t shared_bytes, int limit) {
    (void)shared_of, (void)shared_bytes;
    nm_cu_result result = attribute(handle, 0, block);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!grid) return NM_CUDA_ERROR_INVALID_VALUE;
    *block = limit > 0 && limit < BLOCK_THREADS ? limit : BLOCK_THREADS;
    *grid = model_here()->multiprocessors * (model_here()->threads_each / *block);
    return NM_CUDA_SUCCESS;
}
NM_CU cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, nm_cu_function handle,
                                                void *shared_of, size_t shared_bytes, int limit,
                                                unsigned flags) {
    (void)flags;
    return cuOccupancyMaxPotentialBlockSize(grid, block, handle, shared_of, shared_bytes, limit);
}

NM_CU cuOccupancyAvailableDynamicSMemPerBlock(size_t *out, nm_cu_function handle, int blocks,
                                              int block_threads) {
    (void)block_threads;
    int ignored;
    nm_cu_result result = attribute(handle, 0, &ignored);
    if (result != NM_CUDA_SUCCESS) return result;
    if (!out || blocks <= 0) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = (size_t)(model_here()->shared_kib_each * 1024 / blocks - 1024);
    return NM_CUDA_SUCCESS;
}

NM_CU cuOccupancyMaxActiveClusters(int *out, nm_cu_function handle,
                                   const nm_cu_launch_config *config) {
    nm_cu_result result = attribute(handle, 0, out);
    if (result == NM_CUDA_SUCCESS && !config) result = NM_CUDA_ERROR_INVALID_VALUE;
    if (result == NM_CUDA_SUCCESS) *out = model_here()->multiprocessors;
    return result;
}

/* ---- linking: the output is an image like any
   ----------------------------------------------------------------------- */

NM_CU cuLinkCreate_v2(unsigned count, int *options, void **values, void **out) {
    (void)count, (void)options, (void)values;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    NM_LOCK();
    *out = nm_object_new(NM_LINK, NULL);
    NM_UNLOCK();
    return *out ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_OUT_OF_MEMORY;
}
NM_CU cuLinkCreate(unsigned count, int *options, void **values, void **out) {
    return cuLinkCreate_v2(count, options, values, out);
}

NM_CU cuLinkAddData_v2(void *handle, int type, void *data, size_t bytes, const char *name,
                       unsigned count, int *options, void **values) {
    (void)type, (void)name, (void)count, (void)options, (void)values;
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!nm_object_of(handle, NM_LINK)) return NM_CUDA_ERROR_INVALID_HANDLE;
    return data && bytes > 0 ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}
NM_CU cuLinkAddData(void *handle, int type, void *data, size_t bytes, const char *name,
                    unsigned count, int *options, void **values) {
    return cuLinkAddData_v2(handle, type, data, bytes, name, count, options, values);
}
NM_CU cuLinkAddFile_v2(void *handle, int type, const char *path, unsigned count, int *options,
                       void **values) {
    if (nm_is_ready() && path && access(path, R_OK) != 0) return NM_CUDA_ERROR_FILE_NOT_FOUND;
    return cuLinkAddData_v2(handle, type, (void *)(uintptr_t)path, 1, path, count, options, values);
}
NM_CU cuLinkAddFile(void *handle, int type, const char *path, unsigned count, int *options,
                    void **values) {
    return cuLinkAddFile_v2(handle, type, path, count, options, values);
}

NM_CU cuLinkComplete(void *handle, void **out, size_t *bytes) {
    static char image[] = "simulated image";
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    if (!nm_object_of(handle, NM_LINK)) return NM_CUDA_ERROR_INVALID_HANDLE;
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = image;
    if (bytes) *bytes = sizeof image;
    return NM_CUDA_SUCCESS;
}

NM_CU cuLinkDestroy(void *handle) {
    if (!nm_is_ready()) return NM_CUDA_ERROR_NOT_INITIALIZED;
    NM_LOCK();
    nm_object *linking = nm_object_of(handle, NM_LINK);
    if (linking) nm_object_free(linking);
    NM_UNLOCK();
    return linking ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_HANDLE;
}
