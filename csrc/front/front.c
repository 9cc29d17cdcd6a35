/* front.c: `nodemgr`, before Python: becomes the interpreter of this installation.
 *
 * Knows: the file beside this program, of which pip has written the first line (it names the
 * interpreter), and what an interpreter hides from its programs: SIGPIPE and SIGXFSZ, which it
 * ignores, keep their dispositions for the command of `run`.
 * Must not know: verbs, modules.
 *
 * The environment stays as it is. -I keeps the user's PYTHON variables and modules from the
 * interpreter, -S all site-packages and sitecustomize: nodemgr-python finds what it needs.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SCRIPT "nodemgr-python"
#define HEAD_BYTES (2 * PATH_MAX)
enum { NOT_FOUND = 127, OWN_WORDS = 6 };

/* The directory of this program, with its '/'. */
static bool own_directory(char out[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", out, PATH_MAX - 1);
    if (length <= 0)
        return false;
    out[length] = '\0';
    char *slash = strrchr(out, '/');
    if (slash == NULL)
        return false;
    slash[1] = '\0';
    return true;
}

/* The interpreter that a script names: "#!/venv/bin/python", or, where that line cannot hold the
   path, a second line for sh: '''exec' "/my venv/bin/python" "$0" "$@". NULL: no path. */
static char *named_interpreter(char *head)
{
    static const char shell[] = "#!/bin/sh\n'''exec' ";
    const char *end = "\n";
    char *path = head + 2;
    if (strncmp(head, shell, sizeof shell - 1) == 0) {
        path = head + sizeof shell - 1;
        end = *path == '"' ? "\"" : " ";
        path += *path == '"';
    } else if (strncmp(head, "#!", 2) != 0) {
        return NULL;
    }
    path[strcspn(path, end)] = '\0';
    return *path == '/' ? path : NULL;
}

static char *interpreter_of(const char *script, const char *directory)
{
    static char head[HEAD_BYTES], beside[PATH_MAX + sizeof "python3"];
    FILE *file = fopen(script, "re");
    size_t length = file != NULL ? fread(head, 1, sizeof head - 1, file) : 0;
    if (file != NULL)
        fclose(file);
    head[length] = '\0';
    char *named = named_interpreter(head);
    if (length == 0 || (named != NULL && access(named, X_OK) == 0))
        return named;
    snprintf(beside, sizeof beside, "%spython3", directory); /* an environment that was moved */
    return access(beside, X_OK) == 0 ? beside : named; /* execv says what is wrong with it */
}

static bool is_ignored(int number)
{
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

int main(int argc, char **argv)
{
    static char directory[PATH_MAX], script[PATH_MAX + sizeof SCRIPT], ignored[40];
    /* before Linux 5.18 argc can be 0 */
    char **words = calloc((size_t)argc + OWN_WORDS + 1, sizeof *words);
    char *interpreter = NULL;
    if (words != NULL && own_directory(directory)) {
        snprintf(script, sizeof script, "%s" SCRIPT, directory);
        interpreter = interpreter_of(script, directory);
    }
    if (interpreter == NULL) {
        fprintf(stderr, "nodemgr: %s names no Python: install nodemgr again\n",
                *script != '\0' ? script : SCRIPT);
        return NOT_FOUND;
    }
    snprintf(ignored, sizeof ignored, "nodemgr_ignored=%s%s", is_ignored(SIGPIPE) ? "PIPE," : "",
             is_ignored(SIGXFSZ) ? "XFSZ," : "");
    char *own[OWN_WORDS] = {interpreter, "-I", "-S", "-X", ignored, script};
    memcpy(words, own, sizeof own);
    for (int i = 1; i < argc; i++)
        words[OWN_WORDS + i - 1] = argv[i];
    execv(interpreter, words);
    if (errno == E2BIG)
        fputs("nodemgr: the command line and the variables together are too long for the kernel: "
              "pass less of them\n", stderr);
    else
        fprintf(stderr,
                "nodemgr: %s cannot be executed (%s): install nodemgr again, with a Python that all "
                "its users may execute\n",
                interpreter, strerror(errno));
    return NOT_FOUND;
}
