/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real dlsym and where libcuda lies. dlsym itself is exported from dlsym.S. Any thread, before
 * any constructor has run; atomics only. The functions that run for every look-up of the process
 * call nothing until the name is one of ours.
 */
#ifndef PS_SHIM_DLSYM_H
#define PS_SHIM_DLSYM_H

#include <stdbool.h>
#include <stdint.h>

/* libc's own dlsym, past every tool that stands in for it. From here RTLD_NEXT means "after us". */
void *ps_libc_dlsym(void *handle, const char *name);

/* Of the libcuda that the process has loaded, or NULL. Does not load it. */
void *ps_libcuda_handle(void);
/* Whether p lies in libcuda, once that is known. Two relaxed loads. */
bool ps_in_libcuda(const void *p);
/* The same, and finds out where libcuda lies if p is in a libcuda.so. */
bool ps_libcuda_learn(const void *p);
/* Whether p lies in our own object. */
bool ps_in_us(const void *p);

/* ---- called from dlsym.S ---- */
struct ps_dlsym_answer {
    void *value;
    uintptr_t answered; /* 0: go on to the real dlsym */
};
struct ps_dlsym_answer ps_dlsym_decide(void *handle, const char *name, const void *caller);
/* The dlsym that follows ours; never NULL (a function that finds nothing, if there is none). */
void *ps_dlsym_find_next(void);

#endif
