/* SPDX-License-Identifier: Apache-2.0 */
/* Megatron-LM's rule, on the same model: whole tensors, first come on the device; see spill.h. */
#include <stdlib.h>

#include "policy/spill_int.h"

/* Items in their order, as the link takes them. */
struct queue {
    uint32_t *list;
    uint32_t first, n;
};

struct first_come {
    const struct ps_spill_item *items;
    struct ps_spill *spill;
    int64_t *going, *coming; /* bytes of each item that are not there yet */
    struct queue out, back;
    uint64_t pages, host; /* in use */
    int64_t waited;
};

static void carry(struct queue *q, int64_t *left, int64_t room)
{
    while (room > 0 && q->first < q->n) {
        int64_t *bytes = &left[q->list[q->first]];
        const int64_t now = *bytes < room ? *bytes : room;

        *bytes -= now;
        room -= now;
        q->first += *bytes == 0;
    }
}

static void run_link(struct first_come *f, int64_t room)
{
    carry(&f->out, f->going, room);
    carry(&f->back, f->coming, room);
}

/* All before it in the queue, and it, have been carried. */
static void wait_for(struct first_come *f, const struct queue *q, const int64_t *left,
                     uint32_t item)
{
    int64_t bytes = 0;

    if (left[item] == 0) {
        return;
    }
    for (uint32_t i = q->first; i < q->n; i++) {
        bytes += left[q->list[i]];
        if (q->list[i] == item) {
            break;
        }
    }
    run_link(f, bytes);
    f->waited += bytes;
}

static void leave(struct first_come *f, uint32_t item, uint64_t device_bytes, uint32_t event)
{
    const uint64_t bytes = f->items[item].bytes;
    struct ps_spill_move *m = &f->spill->moves[item];

    if (bytes <= device_bytes && f->pages <= device_bytes - bytes) {
        f->pages += bytes;
        return;
    }
    m->host_bytes = m->direct_bytes = bytes;
    m->out = event;
    f->going[item] = (int64_t)bytes;
    f->out.list[f->out.n++] = item;
    f->host += bytes;
    f->spill->out_bytes += bytes;
    f->spill->host_bytes = f->host > f->spill->host_bytes ? f->host : f->spill->host_bytes;
}

static void come(struct first_come *f, uint32_t item, uint32_t event)
{
    struct ps_spill_move *m = &f->spill->moves[item];

    if (m->host_bytes == 0) {
        f->pages -= f->items[item].bytes;
        return;
    }
    f->host -= m->host_bytes;
    if (f->items[item].due != PS_PLAN_NONE) {
        m->back = event;
        f->coming[item] = (int64_t)m->host_bytes;
        f->back.list[f->back.n++] = item;
    }
}

static void stop_at(struct first_come *f, const struct ps_spill_settings *settings,
                    const struct ps_spill_stop *stop)
{
    switch ((enum ps_spill_stop_kind)stop->kind) {
    case PS_SPILL_LEAVE:
        leave(f, stop->item, settings->device_bytes, stop->event);
        break;
    case PS_SPILL_GONE:
        wait_for(f, &f->out, f->going, stop->item);
        break;
    case PS_SPILL_COME:
        come(f, stop->item, stop->event);
        break;
    case PS_SPILL_DUE:
        wait_for(f, &f->back, f->coming, stop->item);
        break;
    }
}

enum ps_status ps_spill_first_come(const struct ps_spill_step *step,
                                   const struct ps_spill_settings *settings,
                                   const struct ps_spill_stops *stops, struct ps_spill *spill)
{
    struct first_come f = {.items = step->items, .spill = spill};
    const size_t n = step->n_items + (size_t)1;
    enum ps_status status = PS_ERR_MEMORY;

    f.going = calloc(n, sizeof(*f.going));
    f.coming = calloc(n, sizeof(*f.coming));
    f.out.list = malloc(n * sizeof(*f.out.list));
    f.back.list = malloc(n * sizeof(*f.back.list));
    if (f.going != NULL && f.coming != NULL && f.out.list != NULL && f.back.list != NULL) {
        for (uint32_t i = 0; i < stops->n; i++) {
            run_link(&f, i == 0 ? 0 : stops->list[i].time - stops->list[i - 1].time);
            stop_at(&f, settings, &stops->list[i]);
        }
        spill->wait_ns = ps_spill_ns(settings, f.waited);
        status = PS_OK;
    }
    free(f.going);
    free(f.coming);
    free(f.out.list);
    free(f.back.list);
    return status;
}
