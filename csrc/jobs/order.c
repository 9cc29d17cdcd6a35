/* order.c: the order of an attempt, as the manager wrote it.
 *
 * The file is a list of texts, each with a NUL after it: "nodemgr-order 1", then "key=value" (arg=
 * and env= once for each word and variable), then "end". Without that end it is not complete.
 * Unknown keys are ignored.
 */
#include "jobs/jobs.h"
#include "jobs/messages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ORDER_MOST_BYTES (8u << 20)

static const char first[] = "nodemgr-order 1";
static const char last[] = "\0end"; /* with the NUL of the entry before it */

static bool fault(char *why, const char *what)
{
    snprintf(why, NM_JOB_WHY_BYTES, NM_ORDER_NOT_READ, what);
    return false;
}

/* The whole file with a NUL after it, or NULL. */
static char *whole_file(int fd, size_t size)
{
    char *text = malloc(size + 1);
    size_t got = 0;
    while (text != NULL && got < size) {
        ssize_t count = read(fd, text + got, size - got);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            break;
        got += (size_t)count;
    }
    if (text == NULL || got != size) {
        free(text);
        return NULL;
    }
    text[size] = 0;
    return text;
}

bool nm_job_number(const char *text, long long most, long long *value)
{
    const char *digit = text;
    for (*value = 0; *digit >= '0' && *digit <= '9'; digit++) {
        if (*value > (most - (*digit - '0')) / 10)
            return false;
        *value = *value * 10 + (*digit - '0');
    }
    return digit > text && *digit == 0;
}

/* "FILE VALUE", of the leaf's own files. */
static bool take_limit(char *limits[NM_LEAF_LIMITS + 1], char *text)
{
    size_t count = 0;
    while (count < NM_LEAF_LIMITS && limits[count] != NULL)
        count++;
    if (count == NM_LEAF_LIMITS)
        return false;
    limits[count] = text;
    return true;
}

static bool is_number(const char *key)
{
    static const char *const numbers[] = {"uid", "gid", "grace_ms", "log_bytes", "umask",
                                          "signal", "signal_ms"};
    for (size_t index = 0; index < sizeof numbers / sizeof *numbers; index++)
        if (strcmp(key, numbers[index]) == 0)
            return true;
    return false;
}

/* One "key=value"; false: not a valid value. */
static bool take(struct nm_order *order, char *entry, size_t *args, size_t *variables)
{
    long long value;
    char *text = strchr(entry, '=');
    if (text == NULL)
        return false;
    *text++ = 0;
    if (strcmp(entry, "arg") == 0)
        order->argv[(*args)++] = text;
    else if (strcmp(entry, "env") == 0)
        order->environ[(*variables)++] = text;
    else if (strcmp(entry, "job") == 0)
        order->job = text;
    else if (strcmp(entry, "user") == 0)
        order->user = text;
    else if (strcmp(entry, "cwd") == 0)
        order->cwd = text;
    else if (strcmp(entry, "uid") == 0 && nm_job_number(text, (uid_t)-2, &value))
        order->uid = (uid_t)value;
    else if (strcmp(entry, "gid") == 0 && nm_job_number(text, (gid_t)-2, &value))
        order->gid = (gid_t)value;
    else if (strcmp(entry, "grace_ms") == 0 && nm_job_number(text, 1ll << 40, &value))
        order->grace_ms = value;
    else if (strcmp(entry, "log_bytes") == 0 && nm_job_number(text, 1ll << 50, &value))
        order->log_bytes = value;
    else if (strcmp(entry, "umask") == 0 && nm_job_number(text, 0777, &value))
        order->umask = (mode_t)value;
    else if (strcmp(entry, "signal") == 0 && nm_job_number(text, SIGRTMIN - 1, &value))
        order->signal = value;
    else if (strcmp(entry, "signal_ms") == 0 && nm_job_number(text, 1ll << 30, &value))
        order->signal_ms = value;
    else if (strcmp(entry, "leaf") == 0 && nm_leaf_is_name(text, false))
        order->leaf = text;
    else if (strcmp(entry, "limit") == 0)
        return take_limit(order->limits, text);
    else if (strcmp(entry, "env_limit") == 0)
        return take_limit(order->env_limits, text);
    else
        return !is_number(entry);
    return true;
}

static bool parse(char *text, size_t size, struct nm_order *order, char *why)
{
    size_t entries = 0, args = 0, variables = 0;
    if (size < sizeof first || memcmp(text, first, sizeof first) != 0)
        return fault(why, NM_NO_ORDER);
    if (size < sizeof first + sizeof last - 1 ||
        memcmp(text + size - sizeof last, last, sizeof last) != 0)
        return fault(why, NM_CUT_OFF);
    for (size_t at = 0; at < size; at += strlen(text + at) + 1)
        entries++;
    order->argv = calloc(entries + 1, sizeof *order->argv);
    order->environ = calloc(entries + 1, sizeof *order->environ);
    if (order->argv == NULL || order->environ == NULL)
        return fault(why, NM_ORDER_WITHOUT_MEMORY);
    for (size_t at = sizeof first, next; at < size - sizeof last + 1; at = next) {
        next = at + strlen(text + at) + 1;
        if (!take(order, text + at, &args, &variables))
            return fault(why, NM_ORDER_INVALID);
    }
    if (args == 0 || order->user == NULL || order->job == NULL || order->cwd == NULL ||
        order->uid == (uid_t)-1 || order->gid == (gid_t)-1)
        return fault(why, NM_NO_PROGRAM_NAMED);
    return true;
}

bool nm_order_read(const struct nm_files *files, struct nm_order *order, char why[NM_JOB_WHY_BYTES])
{
    struct stat status;
    char *text;
    *order = (struct nm_order){
        .uid = (uid_t)-1, .gid = (gid_t)-1, .umask = 022, .keeps_identity = files->is_inside};
    if (files->order < 0)
        return fault(why, strerror(-files->order));
    if (!nm_file_status(files->order, &status) || !S_ISREG(status.st_mode))
        return fault(why, NM_ORDER_NO_FILE);
    if (!files->is_inside && (status.st_uid != geteuid() || (status.st_mode & 022) != 0))
        return fault(why, NM_WRITTEN_BY_OTHERS);
    if ((unsigned long long)status.st_size > ORDER_MOST_BYTES)
        return fault(why, NM_ORDER_TOO_LONG);
    if ((text = whole_file(files->order, (size_t)status.st_size)) == NULL)
        return fault(why, NM_NO_END);
    return parse(text, (size_t)status.st_size, order, why);
}
