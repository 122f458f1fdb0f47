/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of a site: the ordinal of an allocation among all allocations of its region instance. A site whose
 * tensors went out and were freed without ever being named again has a use that we cannot see: it is not eligible.
 * A site is proven once one of its tensors was named after it had been out. A site whose tensors are named on other
 * streams than their group's is not moved either: the order we would add could deadlock. One stale parameter word
 * can fake that, so a quarter of the tensors, and four, must show it. A site whose stashes never held a uniform page
 * gains nothing by moving and is left to the job's own allocator. Pure; the engine's lock guards it.
 */
#ifndef PS_POLICY_SITES_H
#define PS_POLICY_SITES_H

#include <stdbool.h>
#include <stdint.h>

struct ps_site {
    uint32_t name;      /* number of the region's name */
    uint32_t ordinal;   /* among all allocations of the instance, from 0 */
    bool proven;        /* named again after it was out */
    bool unseen;        /* once freed after being out without having been named */
    uint32_t n_stashed; /* stashes seen complete */
    uint64_t n_uniform; /* uniform pages in them */
    uint32_t n_made;    /* tensors made at this site */
    uint32_t n_foreign; /* of them, named on a stream other than their group's */
    uint32_t n_resized; /* of them, of another size than the one before */
    uint64_t bytes;     /* of the last one */
};

struct ps_sites {
    struct ps_site_entry *table; /* uthash */
};

/* The site, made when new; NULL when host memory is exhausted. The pointer is good until fini. */
struct ps_site *ps_sites_get(struct ps_sites *s, uint32_t name, uint32_t ordinal);
void ps_sites_fini(struct ps_sites *s);
/* May its tensors be moved, and is there something to gain? */
bool ps_site_eligible(const struct ps_site *site);
/* A tensor of so many bytes was made. */
void ps_site_made(struct ps_site *site, uint64_t bytes);
/* Its sizes change all the time: they hold what there is, and no padding. */
bool ps_site_exact(const struct ps_site *site);
/* An allocation has failed: moving for nothing is better than failing. Forgets what was found about gain. */
void ps_sites_forget_gain(struct ps_sites *s);

#endif
