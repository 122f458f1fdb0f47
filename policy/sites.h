/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of a site: the ordinal of an allocation among all allocations of its region instance. A site whose
 * tensors went out and were freed without ever being named again has a use that we cannot see: it is not eligible.
 * A site is proven once one of its tensors was named after it had been out. A site whose tensors are named on other
 * streams than their group's is not moved either: the order we would add could deadlock. One stale parameter word
 * can fake that, so a quarter of the tensors, and four, must show it. A site of which four stashes held no uniform page
 * gains nothing by moving and is left to the job's own allocator; so is the job, if its first four groups held none:
 * one may be full by chance, since all rows went to it. Where rows are counted (range_name.h) a site is trusted once
 * four of its stashes kept to the count after each of two fills, and none did not. Pure; the engine's lock guards it.
 */
#ifndef PS_POLICY_SITES_H
#define PS_POLICY_SITES_H

#include <stdbool.h>
#include <stdint.h>

#define PS_SITE_PARTS 1024

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
    uint32_t
        n_rows_kept[2];   /* of its stashes in which nothing lay behind the rows counted, by fill */
    bool rows_excluded;   /* in one something did */
    uint32_t row_outcome; /* number of its struct ps_row_outcome, from 1; 0: none */
    bool left; /* temporaries: the job's allocator serves them, uniform from front_parts on */
    uint16_t front_parts; /* of PS_SITE_PARTS of the size: homes of what it flows into hold those */
    uint8_t
        n_late; /* how often they were named lately between their instance's pop and the next boundary */
};

/* What stashed groups have shown of the whole job. */
struct ps_gain {
    bool padded;     /* some had a uniform page */
    uint32_t n_full; /* had none, before the first that did */
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
/* One was named, or was never named, between its instance's pop and the next boundary. */
void ps_site_named_late(struct ps_site *site, bool late);
/* Its tensors leave at the boundary after the pop, since they are usually named behind it. */
bool ps_site_late(const struct ps_site *site);
/* A group was stashed; padded: it had a uniform page. */
void ps_gain_seen(struct ps_gain *gain, bool padded);
/* The job has no padding, as far as is known: what would leave stays. */
bool ps_gain_none(const struct ps_gain *gain);
/* A stash of a tensor with room behind the rows counted, handed out with that fill, was seen: nothing lay there. */
void ps_site_rows_kept(struct ps_site *site, bool fill);
/* Something did. For good. */
void ps_site_rows_exclude(struct ps_site *site);
/* What lies behind the rows need not be looked at any more. */
bool ps_site_rows_trusted(const struct ps_site *site);
/* An allocation has failed: moving for nothing is better than failing. Forgets what was found about gain. */
void ps_sites_forget_gain(struct ps_sites *s);

#endif
