/* echo.c: says that it is up and whether it finds the driver, and lives until its standard input
   closes. */
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
    printf("up, the driver %s\n",
           dlopen("libcuda.so.1", RTLD_NOW) != NULL ? "loads" : "does not load");
    fflush(stdout);
    while (getchar() != EOF)
        continue;
    return 0;
}
