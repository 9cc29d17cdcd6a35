/* adopted_stderr.c: threads ask whether number 2 is the stderr, while another adopts it again. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/prim.h"

enum { ADOPTIONS = 20000, THREADS = 3 };

static _Atomic bool ended;
static _Atomic int strangers;

static void *ask(void *unused)
{
    while (!atomic_load(&ended))
        if (!nm_say_is_stderr())
            atomic_fetch_add(&strangers, 1);
    return unused;
}

int main(void)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, ask, NULL);
    for (int i = 0; i < ADOPTIONS; i++)
        nm_say_adopt();
    atomic_store(&ended, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("%d\n", atomic_load(&strangers));
    return 0;
}
