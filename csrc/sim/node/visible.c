/* visible.c: CUDA_VISIBLE_DEVICES to a list of devices.
 *
 * Knows: text. Pure.
 */
#include "sim/node/visible.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void nm_uuid_text(const unsigned char uuid[16], char out[NM_UUID_TEXT_BYTES]) {
    char *at = out + sprintf(out, "GPU-");
    for (int index = 0; index < 16; index++) {
        at +=
            sprintf(at, "%s%02x", index == 4 || index == 6 || index == 8 || index == 10 ? "-" : "",
                    uuid[index]);
    }
}

/* The index of the decimal number at the beginning of `entry`; -1 without one. */
static int by_number(const nm_sim_state *state, const bool shut[], const char *entry) {
    if (*entry == '+') entry++;
    if (*entry < '0' || *entry > '9') return -1;
    unsigned long number = strtoul(entry, NULL, 10);
    for (int index = 0; index < (int)state->device_count; index++) {
        if (!shut[index] && number-- == 0) return index;
    }
    return -1;
}

/* The one device whose UUID begins with it; -1 for none or several. */
static int by_uuid(const nm_sim_state *state, const bool shut[], const char *entry, size_t length) {
    int found = -1;
    for (int index = 0; index < (int)state->device_count; index++) {
        char text[NM_UUID_TEXT_BYTES];
        nm_uuid_text(state->device[index].uuid, text);
        if (shut[index] || length >= NM_UUID_TEXT_BYTES || strncasecmp(text, entry, length) != 0)
            continue;
        if (found >= 0) return -1;
        found = index;
    }
    return found;
}

static bool contains(const int devices[], int count, int device) {
    for (int index = 0; index < count; index++) {
        if (devices[index] == device) return true;
    }
    return false;
}

static const char *skip_blanks(const char *text) { return text + strspn(text, " \t"); }

int nm_visible_devices(const nm_sim_state *state, const bool shut[NM_SIM_DEVICES],
                       const char *value, int devices[NM_SIM_DEVICES]) {
    int count = 0;
    if (!value) {
        for (int index = 0; index < (int)state->device_count; index++) {
            if (!shut[index]) devices[count++] = index;
        }
        return count;
    }
    const char *entry = skip_blanks(value);
    bool uuids = strncasecmp(entry, "GPU-", 4) == 0;
    while (entry) {
        size_t length = strcspn(entry, ",");
        while (length > 0 && strchr(" \t", entry[length - 1])) length--;
        bool is_uuid = length > 4 && strncasecmp(entry, "GPU-", 4) == 0;
        int device = uuids && is_uuid ? by_uuid(state, shut, entry, length)
                     : uuids          ? -1
                                      : by_number(state, shut, entry);
        if (device < 0) break;
        if (contains(devices, count, device)) return 0;
        devices[count++] = device;
        entry = strchr(entry, ',');
        if (entry) entry = skip_blanks(entry + 1);
    }
    return count;
}
