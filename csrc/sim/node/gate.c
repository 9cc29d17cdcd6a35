/* gate.c: see gate.h. */
#include "sim/node/gate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

bool nm_gate_is_shut(int index) {
    char path[32];
    snprintf(path, sizeof path, "/dev/nvidia%d", index);
    int kept = errno, descriptor = open(path, O_RDWR | O_CLOEXEC);
    bool is_shut = descriptor < 0 && errno == EPERM;
    if (descriptor >= 0) close(descriptor);
    errno = kept;
    return is_shut;
}
