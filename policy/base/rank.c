/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as the launchers give them. The order matters: under `srun torchrun` SLURM_PROCID is the node's number, so
 * RANK goes first. The kept rank is written once and read by any thread without a lock.
 */
#include "policy/base/rank.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

struct launcher {
    const char *global;
    const char *local;
    const char *size;
};

static const struct launcher launchers[] = {
    {"RANK", "LOCAL_RANK", "WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMIX_RANK", NULL, NULL},
    {"PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"},
    {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"},
};

/* One more than the rank, so that the start value is "not known"; relaxed, each stands alone. */
static _Atomic int64_t kept_global;
static _Atomic int64_t kept_local;
/* Pairs with itself: the first caller of ps_rank_settle goes on. */
static atomic_bool settled;

static int64_t number_of(const char *name)
{
    const char *text = name == NULL ? NULL : secure_getenv(name);
    int64_t value = 0;

    if (text == NULL || text[0] == '\0') {
        return -1;
    }
    for (; *text >= '0' && *text <= '9' && value < INT32_MAX; text++) {
        value = value * 10 + (*text - '0');
    }
    return *text == '\0' && value <= INT32_MAX ? value : -1;
}

int64_t ps_rank_local_size(void)
{
    static const char *const names[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "SLURM_NTASKS_PER_NODE"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const int64_t n = number_of(names[i]);

        if (n > 0) {
            return n;
        }
    }
    return 1;
}

struct ps_rank ps_rank_read(int64_t own)
{
    struct ps_rank rank = {-1, -1, -1};

    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]) && rank.global < 0; i++) {
        rank.global = number_of(launchers[i].global);
        if (rank.global >= 0) {
            rank.local = number_of(launchers[i].local);
            rank.size = number_of(launchers[i].size);
        }
    }
    if (own >= 0) {
        rank.global = own;
    }
    return rank;
}

void ps_rank_settle(int64_t own)
{
    if (atomic_exchange_explicit(&settled, true, memory_order_relaxed)) {
        return;
    }
    const struct ps_rank rank = ps_rank_read(own);

    atomic_store_explicit(&kept_global, rank.global + 1, memory_order_relaxed);
    atomic_store_explicit(&kept_local, rank.local + 1, memory_order_relaxed);
}

int64_t ps_rank_global(void)
{
    return atomic_load_explicit(&kept_global, memory_order_relaxed) - 1;
}

int64_t ps_rank_local(void)
{
    return atomic_load_explicit(&kept_local, memory_order_relaxed) - 1;
}

bool ps_rank_speaks(void)
{
    return ps_rank_global() <= 0;
}
