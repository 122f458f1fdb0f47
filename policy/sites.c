/* SPDX-License-Identifier: Apache-2.0 */
/* Sites; see sites.h. Called with the engine's lock held. */
#include "policy/sites.h"

#include <stdlib.h>

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

/* Stashes that kept to the count, after each fill, before it is believed. */
#define ROWS_KEPT_LEAST 4

/* Stashes without a uniform page, of a site or of groups, before nothing more is expected. */
#define FULL_LEAST 4

struct ps_site_entry {
    uint64_t key;
    struct ps_site site;
    UT_hash_handle hh;
};

struct ps_site *ps_sites_get(struct ps_sites *s, uint32_t name, uint32_t ordinal)
{
    const uint64_t key = (uint64_t)name << 32 | ordinal;
    struct ps_site_entry *e;
    HASH_FIND(hh, s->table, &key, sizeof(key), e);
    if (e != NULL) {
        return &e->site;
    }
    e = calloc(1, sizeof(*e));
    if (e == NULL) {
        return NULL;
    }
    e->key = key;
    e->site.name = name;
    e->site.ordinal = ordinal;
    HASH_ADD(hh, s->table, key, sizeof(key), e);
    if (e->hh.tbl == NULL) {
        free(e);
        return NULL;
    }
    return &e->site;
}

void ps_sites_fini(struct ps_sites *s)
{
    struct ps_site_entry *e = s->table;
    HASH_CLEAR(hh, s->table); /* the entries stay linked */
    while (e != NULL) {
        struct ps_site_entry *next = e->hh.next;
        free(e);
        e = next;
    }
}

bool ps_site_eligible(const struct ps_site *site)
{
    const bool foreign = site->n_foreign >= 4 && site->n_foreign >= site->n_made / 4;
    const bool gainless = site->n_stashed >= FULL_LEAST && site->n_uniform == 0;
    return !foreign && !gainless && (site->proven || !site->unseen);
}

void ps_site_rows_kept(struct ps_site *site, bool fill)
{
    site->n_rows_kept[fill] += site->n_rows_kept[fill] < ROWS_KEPT_LEAST;
}

void ps_site_rows_exclude(struct ps_site *site)
{
    site->rows_excluded = true;
}

bool ps_site_rows_trusted(const struct ps_site *site)
{
    return site->n_rows_kept[0] >= ROWS_KEPT_LEAST && site->n_rows_kept[1] >= ROWS_KEPT_LEAST &&
           !site->rows_excluded;
}

void ps_sites_forget_gain(struct ps_sites *s)
{
    for (struct ps_site_entry *e = s->table; e != NULL; e = e->hh.next) {
        e->site.n_stashed = 0;
        e->site.left = false;
    }
}

void ps_gain_seen(struct ps_gain *gain, bool padded)
{
    gain->padded = gain->padded || padded;
    gain->n_full += !gain->padded && gain->n_full < FULL_LEAST;
}

bool ps_gain_none(const struct ps_gain *gain)
{
    return !gain->padded && gain->n_full >= FULL_LEAST;
}

void ps_site_made(struct ps_site *site, uint64_t bytes)
{
    site->n_resized += site->n_made > 0 && bytes != site->bytes;
    site->n_made++;
    site->bytes = bytes;
}

bool ps_site_exact(const struct ps_site *site)
{
    return site->n_made >= 8 && site->n_resized * 4 > site->n_made;
}

#define LATE_STEP 4  /* one late use counts as much as so many tensors without one */
#define LATE_MAX  12 /* so a site that has stopped is early again after so many tensors */

void ps_site_named_late(struct ps_site *site, bool late)
{
    const unsigned more = site->n_late + LATE_STEP;
    if (late) {
        site->n_late = (uint8_t)(more < LATE_MAX ? more : LATE_MAX);
    } else if (site->n_late > 0) {
        site->n_late--;
    }
}

bool ps_site_late(const struct ps_site *site)
{
    return site->n_late >= LATE_STEP;
}
