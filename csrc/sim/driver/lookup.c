/* lookup.c: cuGetProcAddress as in drivers 470 to 555 (tests/sim/test_lookup.py), and the texts
 * of errors.
 *
 * Knows: the table of names that the build makes from driver_names.txt. Must not know: the
 * functions.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/driver/driver.h"
#include "sim/driver/lookup.h"

/* ---- cuGetProcAddress
   ----------------------------------------------------------------------------- */

static int compare_base(const void *key, const void *row) {
    return strcmp(key, ((const nm_name *)row)->base);
}

/* The rows of one base name lie together, older ABIs first. */
static const nm_name *first_of(const char *base) {
    const nm_name *found = bsearch(base, nm_names, nm_name_count, sizeof *nm_names, compare_base);
    while (found && found > nm_names && strcmp(found[-1].base, base) == 0) found--;
    return found;
}

/* The youngest ABI up to that version; NULL: none. With the per-thread flag only the variants with a
   thread's own default stream count, if the function has any. */
static const nm_name *choose(const nm_name *first, unsigned version, bool per_thread) {
    const nm_name *plain = NULL, *threaded = NULL;
    bool has_threaded = false;
    for (const nm_name *row = first;
         row < nm_names + nm_name_count && strcmp(row->base, first->base) == 0; row++) {
        if (row->version > nm_driver_version()) continue; /* younger than the driver */
        has_threaded = has_threaded || row->per_thread;
        if ((unsigned)row->version > version) continue;
        if (row->per_thread) threaded = row;
        else plain = row;
    }
    return per_thread && has_threaded ? threaded : plain;
}

/* The function, or NULL with the status; a version of the future is the newest. */
static void *look_up(const char *symbol, unsigned version, uint64_t flags, int *status) {
    const nm_name *first = first_of(symbol);
    if (first && first->version > nm_driver_version()) first = NULL;
    const nm_name *found =
        first ? choose(first, version, flags & NM_CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
              : NULL;
    *status = !first  ? NM_CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
              : found ? NM_CU_GET_PROC_ADDRESS_SUCCESS
                      : NM_CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return found ? found->address : NULL;
}

static bool is_question(const char *symbol, void **out, uint64_t flags) {
    enum {
        KNOWN_FLAGS = NM_CU_GET_PROC_ADDRESS_LEGACY_STREAM |
                      NM_CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
    };
    return symbol && out && !(flags & ~(uint64_t)KNOWN_FLAGS);
}

/* A symbol that is not found leaves the pointer as it was. */
NM_CU cuGetProcAddress(const char *symbol, void **out, int version, uint64_t flags) {
    int ignored;
    if (!is_question(symbol, out, flags)) return NM_CUDA_ERROR_INVALID_VALUE;
    void *found = look_up(symbol, (unsigned)version, flags, &ignored);
    if (!found) return NM_CUDA_ERROR_NOT_FOUND;
    *out = found;
    return NM_CUDA_SUCCESS;
}

/* A symbol that is not found is a success: NULL, and the status. */
NM_CU cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags,
                          int *status) {
    int ignored;
    if (!is_question(symbol, out, flags)) return NM_CUDA_ERROR_INVALID_VALUE;
    *out = look_up(symbol, (unsigned)version, flags, status ? status : &ignored);
    return NM_CUDA_SUCCESS;
}

/* The undocumented tables are not simulated. */
NM_CU cuGetExportTable(const void **out, const nm_cu_uuid *id) {
    (void)id;
    if (out) *out = NULL;
    return NM_CUDA_ERROR_NOT_FOUND;
}

/* ---- errors
   ----------------------------------------------------------------------------- */

typedef struct {
    int code;
    const char *name;
    char text[64]; /* the name in words, made at the first question */
} error_row;

#define X(name, value) {value, #name, ""},
static error_row errors[] = {NM_CU_RESULTS(X) NM_SIM_CU_RESULTS(X)};
#undef X

static error_row *error_of(int code) {
    for (size_t index = 0; index < sizeof errors / sizeof *errors; index++) {
        if (errors[index].code == code) return &errors[index];
    }
    return NULL;
}

/* "CUDA_ERROR_OUT_OF_MEMORY" is "out of memory". Two threads at once write the same bytes. */
static const char *words(error_row *row) {
    static const char prefix[] = "CUDA_ERROR_";
    if (row->code == NM_CUDA_SUCCESS) return "no error";
    const char *from = row->name + sizeof prefix - 1;
    for (size_t index = 0; from[index] && index < sizeof row->text - 1; index++) {
        char letter = from[index];
        row->text[index] = letter == '_'                    ? ' '
                           : letter >= 'A' && letter <= 'Z' ? (char)(letter - 'A' + 'a')
                                                            : letter;
    }
    return row->text;
}

static nm_cu_result describe(int code, const char **out, bool in_words) {
    if (!out) return NM_CUDA_ERROR_INVALID_VALUE;
    error_row *row = error_of(code);
    *out = !row ? NULL : in_words ? words(row) : row->name;
    return row ? NM_CUDA_SUCCESS : NM_CUDA_ERROR_INVALID_VALUE;
}

NM_CU cuGetErrorName(int code, const char **out) { return describe(code, out, false); }
NM_CU cuGetErrorString(int code, const char **out) { return describe(code, out, true); }
