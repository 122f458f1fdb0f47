/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: sends and receives; see match.h. Messages wait here in the order they were sent. Under the big lock. */
#include "tools/simcuda/match.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/dual.h"
#include "tools/simcuda/core.h"

struct message {
    struct message *next;
    uint64_t channel;
    uint64_t bytes;
    uint8_t data[];
};

static struct message *messages;

static struct message **first_of(uint64_t channel)
{
    struct message **link = &messages;

    while (*link != NULL && (*link)->channel != channel) {
        link = &(*link)->next;
    }
    return link;
}

PS_KERNEL3(sim_send, uint64_t, channel, uint64_t, from, uint64_t, bytes)
{
    if (PS_BLOCK != 0) {
        return;
    }
    struct message *m = sim_calloc(1, sizeof *m + bytes);
    struct message **last = &messages;

    m->channel = channel;
    m->bytes = bytes;
    memcpy(m->data, ps_address(from), bytes);
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = m;
}

PS_KERNEL3(sim_recv, uint64_t, channel, uint64_t, to, uint64_t, bytes)
{
    if (PS_BLOCK != 0) {
        return;
    }
    struct message **link = first_of(channel);
    struct message *m = *link;

    memcpy(ps_address(to), m->data, bytes < m->bytes ? bytes : m->bytes);
    *link = m->next;
    free(m);
}

static bool is(const struct sim_op *op, const char *name)
{
    return op->kind == SIM_OP_KERNEL && strcmp(op->name, name) == 0;
}

uint64_t sim_match_channel(const struct sim_op *op)
{
    return *(const uint64_t *)op->launch.params[0];
}

bool sim_match_ready(const struct sim_op *op)
{
    return !is(op, "sim_recv") || *first_of(sim_match_channel(op)) != NULL;
}

const struct sim_op *sim_match_awaited(const struct sim_op *op)
{
    const uint64_t channel = sim_match_channel(op);

    for (const struct sim_ctx *ctx = sim_contexts; ctx != NULL; ctx = ctx->next) {
        for (const struct sim_stream *s = ctx->streams; s != NULL; s = s->next) {
            for (const struct sim_op *o = s->head; o != NULL; o = o->next) {
                if (is(o, "sim_send") && sim_match_channel(o) == channel) {
                    return o;
                }
            }
        }
    }
    return NULL;
}
