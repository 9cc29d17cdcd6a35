/* modules.c: charges for modules and libraries by their images, while they are loaded.
 *
 * Knows: the calls that load and unload. Must not know: images (images.h), the ledger, the lease
 * (charge.h).
 *
 * An image does not show everything: code compiled at load, fat binaries and a library's copies on
 * further devices are only in the driver's figures, from which the manager corrects the charges.
 * But a variable of four gigabytes cannot pass the quota.
 */
#include "account/charge.h"
#include "client/client.h"
#include "hooks/interpose.h"
#include "memory/contexts.h"
#include "memory/images.h"
#include "memory/room.h"

enum { SUCCESS = NM_CUDA_SUCCESS };

static bool begin(struct nm_charge *charge, uint64_t bytes)
{
    return bytes != 0 ? nm_take_here(charge, bytes) : nm_take(charge, -1, 0);
}

static bool begin_image(struct nm_charge *charge, const void *image)
{
    return begin(charge, nm_client_lease() != NULL ? nm_image_bytes(image) : 0);
}

static bool begin_file(struct nm_charge *charge, const char *path)
{
    return begin(charge, nm_client_lease() != NULL ? nm_image_file_bytes(path) : 0);
}

/* A module or a library: the handles of both are addresses. */
static int loaded(struct nm_charge *charge, int result, void *const *handle)
{
    if (result != SUCCESS)
        nm_charge_give_back(charge);
    else if (charge->bytes != 0)
        nm_contexts_keep(charge, NM_BLOCK_MODULE, (uintptr_t)*handle);
    return result;
}

int nm_hook_cuModuleLoad(nm_cu_module *module, const char *path)
{
    struct nm_charge charge;
    if (!begin_file(&charge, path))
        return nm_charge_refusal(&charge);
    return loaded(&charge, nm_real_cuModuleLoad(module, path), module);
}

int nm_hook_cuModuleLoadData(nm_cu_module *module, const void *image)
{
    struct nm_charge charge;
    if (!begin_image(&charge, image))
        return nm_charge_refusal(&charge);
    return loaded(&charge, nm_real_cuModuleLoadData(module, image), module);
}

int nm_hook_cuModuleLoadDataEx(nm_cu_module *module, const void *image, unsigned count,
                               int *options, void **values)
{
    struct nm_charge charge;
    if (!begin_image(&charge, image))
        return nm_charge_refusal(&charge);
    return loaded(&charge, nm_real_cuModuleLoadDataEx(module, image, count, options, values),
                  module);
}

int nm_hook_cuModuleLoadFatBinary(nm_cu_module *module, const void *image)
{
    struct nm_charge charge;
    if (!begin_image(&charge, image))
        return nm_charge_refusal(&charge);
    return loaded(&charge, nm_real_cuModuleLoadFatBinary(module, image), module);
}

int nm_hook_cuLibraryLoadData(nm_cu_library *library, const void *code, int *jit_options,
                              void **jit_values, unsigned jit_count, int *options, void **values,
                              unsigned count)
{
    struct nm_charge charge;
    if (!begin_image(&charge, code))
        return nm_charge_refusal(&charge);
    int result = nm_real_cuLibraryLoadData(library, code, jit_options, jit_values, jit_count,
                                           options, values, count);
    return loaded(&charge, result, library);
}

int nm_hook_cuLibraryLoadFromFile(nm_cu_library *library, const char *path, int *jit_options,
                                  void **jit_values, unsigned jit_count, int *options,
                                  void **values, unsigned count)
{
    struct nm_charge charge;
    if (!begin_file(&charge, path))
        return nm_charge_refusal(&charge);
    int result = nm_real_cuLibraryLoadFromFile(library, path, jit_options, jit_values, jit_count,
                                               options, values, count);
    return loaded(&charge, result, library);
}

static int unload(int (*real)(void *), void *handle)
{
    struct nm_block block, stale;
    bool charged = nm_block_take(NM_BLOCK_MODULE, (uintptr_t)handle, &block);
    int result = real(handle);
    if (charged && result == SUCCESS)
        nm_charge_give_back_block(&block);
    else if (charged)
        nm_block_put(&block, &stale);
    return result;
}

int nm_hook_cuModuleUnload(nm_cu_module module)
{
    return unload(nm_real_cuModuleUnload, module);
}

int nm_hook_cuLibraryUnload(nm_cu_library library)
{
    return unload(nm_real_cuLibraryUnload, library);
}
