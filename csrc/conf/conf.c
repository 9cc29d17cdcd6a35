/* conf.c: see conf.h. */
#include "conf/conf.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/prim.h"

static const char default_directory[] = "/run/nodemgr-env";

bool nm_conf_path(const struct nm_conf *conf, const char *name, char *out, size_t size)
{
    int length = snprintf(out, size, "%s/%s", conf->directory, name);
    return length > 0 && (size_t)length < size;
}

static bool switched_off(void)
{
    const char *off = nm_env_get("NODEMGR_OFF");
    return off != NULL && strcmp(off, "1") == 0;
}

/* An error that has nothing to do with the file: the process is managed, and reads it again
   later. */
static bool is_passing(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == EIO;
}

bool nm_conf_read(struct nm_conf *conf)
{
    if (nm_is_secure() || switched_off())
        return false;
    const char *named = nm_env_get("NODEMGR_ENV_DIR");
    const char *directory = named != NULL && *named != '\0' ? named : default_directory;
    char path[NM_PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/client.conf", directory);
    if (length < 0 || (size_t)length >= sizeof path)
        return false;
    char text[NM_CONF_BYTES];
    bool read = nm_file_read(path, text, sizeof text) >= 0;
    if (!read && !is_passing(errno))
        return false;
    conf->fault = read ? 0 : errno;
    if (read || strcmp(conf->directory, directory) != 0)
        nm_copy(conf->text, sizeof conf->text, read ? text : "");
    nm_copy(conf->directory, sizeof conf->directory, directory);
    return true;
}

int nm_conf_get(const struct nm_conf *conf, const char *key, char *out, size_t size)
{
    size_t key_length = strlen(key);
    for (const char *line = conf->text; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        if (length > key_length && memcmp(line, key, key_length) == 0 && line[key_length] == '=') {
            size_t value = length - key_length - 1;
            if (value >= size)
                return -1;
            memcpy(out, line + key_length + 1, value);
            out[value] = '\0';
            return (int)value;
        }
        line += length + (line[length] == '\n');
    }
    return -1;
}

bool nm_conf_is(const struct nm_conf *conf, const char *key, const char *value)
{
    char found[64];
    return nm_conf_get(conf, key, found, sizeof found) >= 0 && strcmp(found, value) == 0;
}

uint64_t nm_conf_number(const struct nm_conf *conf, const char *key, uint64_t absent)
{
    char found[32];
    uint64_t value;
    int length = nm_conf_get(conf, key, found, sizeof found);
    return length > 0 && nm_number(found, (size_t)length, &value) ? value : absent;
}
