/* hold.c: a small CUDA program: takes device memory, says so in one line of JSON, and holds it.
 *
 * Knows: seven functions of the driver, which it declares itself (no CUDA header is needed to build
 * it), and the three ways that programs have of reaching them. Must not know: who manages the GPU.
 *
 *   hold [-r link|dlsym|proc] [-b BYTES] [-n COUNT] [-d DEVICE] [-s SECONDS]
 *
 * Takes COUNT (1) times BYTES (1 MiB) on DEVICE (0) by the given route (link); without -s it holds
 * them until its standard input closes, with -s for that long. Exit code 0; 1 where an allocation
 * was refused (what was had before is held all the same); 2 for wrong usage; 3 where there is no
 * CUDA.
 *
 * Build: cc -o hold hold.c libcuda.so.1 -ldl, with any libcuda.so.1 at hand.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int result;
enum { SUCCESS = 0, DRIVER_VERSION = 12000, MAX_ALLOCATIONS = 1 << 20 };

typedef struct {
    unsigned char bytes[16];
} uuid;

/* Each function once: its type, the symbol, and the name and version by which cuGetProcAddress
   knows it. */
#define FUNCTIONS(X) \
    X(init, (unsigned flags), cuInit, "cuInit", 2000) \
    X(device_count, (int *out), cuDeviceGetCount, "cuDeviceGetCount", 2000) \
    X(device_uuid, (uuid * out, int device), cuDeviceGetUuid, "cuDeviceGetUuid", 9020) \
    X(retain, (void **out, int device), cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", \
      7000) \
    X(set_current, (void *context), cuCtxSetCurrent, "cuCtxSetCurrent", 4000) \
    X(allocate, (uint64_t *out, size_t bytes), cuMemAlloc_v2, "cuMemAlloc", 3020) \
    X(memory_info, (size_t *free_bytes, size_t *total_bytes), cuMemGetInfo_v2, "cuMemGetInfo", \
      3020) \
    X(error_name, (result code, const char **out), cuGetErrorName, "cuGetErrorName", 6000)

#define DECLARE(field, parameters, symbol, base, version) result symbol parameters;
FUNCTIONS(DECLARE)

#define FIELD(field, parameters, symbol, base, version) result(*field) parameters;
typedef struct {
    FUNCTIONS(FIELD)
} driver;

/* ---- the three routes
   ----------------------------------------------------------------------------- */

static int by_link(driver *cuda) {
#define LINK(field, parameters, symbol, base, version) cuda->field = symbol;
    FUNCTIONS(LINK)
    return 1;
}

static int by_dlsym(driver *cuda) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return 0;
#define LOOK_UP(field, parameters, symbol, base, version) \
    *(void **)(&cuda->field) = dlsym(library, #symbol); \
    if (!cuda->field) return 0;
    FUNCTIONS(LOOK_UP)
    return 1;
}

static int by_proc_address(driver *cuda) {
    result (*get)(const char *, void **, int, uint64_t, int *);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return 0;
    *(void **)(&get) = dlsym(library, "cuGetProcAddress_v2");
    if (!get) return 0;
#define ASK(field, parameters, symbol, base, version) \
    if (get(base, (void **)&cuda->field, version, 0, NULL) != SUCCESS || !cuda->field) return 0;
    FUNCTIONS(ASK)
    return 1;
}

static const struct {
    const char *name;
    int (*find)(driver *);
} routes[] = {{"link", by_link}, {"dlsym", by_dlsym}, {"proc", by_proc_address}};

/* ---- the program
   ----------------------------------------------------------------------------- */

typedef struct {
    const char *route;
    size_t bytes;
    long count;
    int device;
    double seconds; /* below 0: until standard input closes */
} wish;

static void usage(void) {
    fprintf(stderr,
            "usage: hold [-r link|dlsym|proc] [-b BYTES] [-n COUNT] [-d DEVICE] [-s SECONDS]\n");
    exit(2);
}

static double number(const char *text, double least, double most) {
    char *end;
    double value = strtod(text, &end);
    if (*text == '\0' || *end != '\0' || !(value >= least && value <= most)) usage();
    return value;
}

static wish parse(int count, char **words) {
    wish asked = {"link", 1 << 20, 1, 0, -1};
    for (int option; (option = getopt(count, words, "r:b:n:d:s:")) != -1;) {
        switch (option) {
        case 'r': asked.route = optarg; break;
        case 'b': asked.bytes = (size_t)number(optarg, 1, 1e15); break;
        case 'n': asked.count = (long)number(optarg, 0, MAX_ALLOCATIONS); break;
        case 'd': asked.device = (int)number(optarg, 0, 1000); break;
        case 's': asked.seconds = number(optarg, 0, 1e6); break;
        default: usage();
        }
    }
    if (optind != count) usage();
    return asked;
}

static int no_cuda(const driver *cuda, const char *step, result code) {
    const char *name = NULL;
    if (cuda) cuda->error_name(code, &name);
    printf("{\"pid\": %d, \"step\": \"%s\", \"error\": \"%s\"}\n", (int)getpid(), step,
           name ? name : "not found");
    return 3;
}

static void say(const driver *cuda, const wish *asked, int devices, long had, result refused) {
    uuid id = {{0}};
    size_t free_bytes = 0, total_bytes = 0;
    const char *error = NULL;
    cuda->device_uuid(&id, asked->device);
    cuda->memory_info(&free_bytes, &total_bytes);
    if (refused != SUCCESS) cuda->error_name(refused, &error);
    printf("{\"pid\": %d, \"route\": \"%s\", \"devices\": %d, \"uuid\": \"GPU-", (int)getpid(),
           asked->route, devices);
    for (int index = 0; index < 16; index++)
        printf("%s%02x", index == 4 || index == 6 || index == 8 || index == 10 ? "-" : "",
               id.bytes[index]);
    printf("\", \"allocations\": %ld, \"allocated_bytes\": %zu, ", had, (size_t)had * asked->bytes);
    printf("\"free_bytes\": %zu, \"total_bytes\": %zu, ", free_bytes, total_bytes);
    printf(error ? "\"error\": \"%s\"}\n" : "\"error\": null}\n", error);
    fflush(stdout);
}

static void hold(double seconds) {
    if (seconds >= 0) {
        struct timespec left = {.tv_sec = (time_t)seconds};
        left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);
        while (nanosleep(&left, &left) != 0) {
        }
        return;
    }
    char ignored[256];
    while (read(STDIN_FILENO, ignored, sizeof ignored) > 0) {
    }
}

int main(int count, char **words) {
    wish asked = parse(count, words);
    driver cuda;
    int found = -1, devices = 0;
    void *context = NULL;
    for (size_t index = 0; index < sizeof routes / sizeof *routes; index++) {
        if (strcmp(routes[index].name, asked.route) == 0) found = routes[index].find(&cuda);
    }
    if (found < 0) usage();
    if (!found) return no_cuda(NULL, "find", 0);

    result code = cuda.init(0);
    if (code != SUCCESS) return no_cuda(&cuda, "cuInit", code);
    cuda.device_count(&devices);
    code = cuda.retain(&context, asked.device);
    if (code == SUCCESS) code = cuda.set_current(context);
    if (code != SUCCESS) return no_cuda(&cuda, "cuDevicePrimaryCtxRetain", code);

    long had = 0;
    uint64_t address;
    while (had < asked.count && (code = cuda.allocate(&address, asked.bytes)) == SUCCESS) had++;
    say(&cuda, &asked, devices, had, code);
    hold(asked.seconds);
    return code == SUCCESS ? 0 : 1;
}
