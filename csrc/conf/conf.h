/* conf.h: client.conf, which gives an environment's processes the manager's address and settings.
 *
 * Knows: the place of the file and its form (one KEY=value a line; unknown keys are ignored). Must
 * not know: the use of the settings.
 */
#ifndef NM_CONF_H
#define NM_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NM_CONF_BYTES 4096
#define NM_PATH_BYTES 1024

struct nm_conf {
    char directory[NM_PATH_BYTES];
    char text[NM_CONF_BYTES];
    /* errno of a failed read for lack of descriptors or memory; the text is then the last one
       read, if any */
    int fault;
};

/* Reads it from NODEMGR_ENV_DIR, else /run/nodemgr-env. False: no readable file, NODEMGR_OFF=1,
   or a setuid program (which reads no environment). *conf then stays as it was. */
bool nm_conf_read(struct nm_conf *conf);
/* length, or -1: not there or too long */
int nm_conf_get(const struct nm_conf *conf, const char *key, char *out, size_t size);
bool nm_conf_is(const struct nm_conf *conf, const char *key, const char *value);
uint64_t nm_conf_number(const struct nm_conf *conf, const char *key, uint64_t absent);
/* of a file in that directory */
bool nm_conf_path(const struct nm_conf *conf, const char *name, char *out, size_t size);

#endif
