/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's allocator setting, "key:value,key:[a:b,c:d]": puts our backend into it. No state;
 * called in the constructor.
 */
#ifndef PS_SHIM_ALLOC_CONF_H
#define PS_SHIM_ALLOC_CONF_H

#define PS_ALLOC_CONF_MAX 1024

enum ps_alloc_conf_result {
    PS_ALLOC_CONF_MERGED,
    PS_ALLOC_CONF_OVERRIDDEN, /* another backend was named, or expandable segments, which ours has not */
    PS_ALLOC_CONF_TOO_LONG, /* nothing written */
};

/* Writes backend:cudaMallocAsync and the user's other keys. */
enum ps_alloc_conf_result ps_alloc_conf_merge(const char *user, char merged[PS_ALLOC_CONF_MAX]);

#endif
