/* SPDX-License-Identifier: Apache-2.0 */
/* A wrapper around the next library's function of the same name; CHAIN_END: that function. */
#include <dlfcn.h>
#include <stddef.h>

#define VISIBLE __attribute__((visibility("default")))

VISIBLE int chained(void);
VISIBLE int CHAIN_ANCHOR(void); /* so that the linker keeps this library in its place */

int CHAIN_ANCHOR(void)
{
    return 0;
}

#ifdef CHAIN_END
int chained(void)
{
    return 100;
}
#else
int chained(void)
{
    int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "chained");

    return next == NULL || next == chained ? -1000 : next() + 1;
}
#endif
