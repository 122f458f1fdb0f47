/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simcuda: late words. A device may keep what a kernel writes to host memory to itself until an event behind the kernel
 * is seen complete, and it may show one word before another. So the ledger words of a stash, which are the only ones
 * that kernels of ours write, go to a place beside, and from there to the host: when the host has learned that the
 * launch is done (with the checker exactly then, without it at the next thing it learns), or at any entry before by
 * chance. Who reads a word too early reads an old one. Under the big lock.
 */
#include "tools/simcuda/late.h"

#include <stdlib.h>

#include "tools/simcuda/core.h"
#include "tools/simcuda/pagekernels.h"

struct word {
    uint64_t *host; /* NULL: seen, or never to be seen */
    uint64_t value;
};

/* Of one launch. In the list from its end until all its words are seen. */
struct sim_late {
    struct sim_late *next;
    struct sim_op *op; /* holds a reference while in the list */
    size_t n;
    struct word words[];
};

static struct sim_late *waiting, **waiting_end = &waiting; /* oldest first */

/* What older launches wrote to the same word is never seen any more. */
static void show(struct sim_late *late, struct word *w)
{
    uint64_t *host = w->host;

    if (host == NULL) {
        return;
    }
    __atomic_store_n(host, w->value, __ATOMIC_RELEASE);
    for (struct sim_late *l = waiting; l != late->next; l = l->next) {
        for (size_t i = 0; i < l->n; i++) {
            if (l->words[i].host == host) {
                l->words[i].host = NULL;
            }
        }
    }
}

void sim_late_begin(struct sim_op *op)
{
    if (op->launch.late != NULL || !sim_pk_known(op)) {
        return;
    }
    uint64_t *fields[SIM_PK_WORDS_MAX];
    const size_t n = sim_pk_host_words(op, fields);
    struct sim_late *late = sim_calloc(1, sizeof *late + n * sizeof late->words[0]);

    op->launch.late = late;
    for (size_t i = 0; i < n; i++) {
        uint64_t *host = (uint64_t *)(uintptr_t)*fields[i]; /* NOLINT(performance-no-int-to-ptr) */

        if (!sim_hostmem_pinned(host, sizeof *host)) {
            continue;
        }
        late->words[late->n] = (struct word){host, __atomic_load_n(host, __ATOMIC_RELAXED)};
        *fields[i] = (uint64_t)(uintptr_t)&late->words[late->n++].value;
    }
}

void sim_late_done(struct sim_op *op)
{
    struct sim_late *late = op->kind == SIM_OP_KERNEL ? op->launch.late : NULL;

    if (late == NULL || late->n == 0 || op->ctx->error != CUDA_SUCCESS) {
        return;
    }
    op->launch.late = NULL;
    late->op = sim_op_ref(op);
    *waiting_end = late;
    waiting_end = &late->next;
}

void sim_late_drop(struct sim_launch *launch)
{
    free(launch->late);
    launch->late = NULL;
}

/* Takes it out of the list. */
static void end(struct sim_late **link)
{
    struct sim_late *late = *link;

    *link = late->next;
    if (late->next == NULL) {
        waiting_end = link;
    }
    sim_op_unref(late->op);
    free(late);
}

void sim_late_learned(void)
{
    for (struct sim_late **link = &waiting; *link != NULL;) {
        struct sim_late *late = *link;

        if (!sim_check_host_knows(late->op)) {
            link = &late->next;
            continue;
        }
        for (size_t i = 0; i < late->n; i++) {
            show(late, &late->words[i]);
        }
        end(link);
    }
}

/* Words of one launch in any order. */
void sim_late_chance(void)
{
    if (waiting == NULL || !sim_sched_visible()) {
        return;
    }
    size_t n = 0;

    for (const struct sim_late *late = waiting; late != NULL; late = late->next) {
        n += late->n;
    }
    if (n == 0) {
        return;
    }
    size_t chosen = sim_sched_draw() % n;

    for (struct sim_late *late = waiting; late != NULL; late = late->next) {
        if (chosen < late->n) {
            show(late, &late->words[chosen]);
            return;
        }
        chosen -= late->n;
    }
}

void sim_late_forget(const void *base, size_t bytes)
{
    for (struct sim_late *late = waiting; late != NULL; late = late->next) {
        for (size_t i = 0; i < late->n; i++) {
            if ((uintptr_t)late->words[i].host - (uintptr_t)base < bytes) {
                late->words[i].host = NULL;
            }
        }
    }
}
