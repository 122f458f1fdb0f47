/* SPDX-License-Identifier: Apache-2.0 */
/* What kernel_bench measures of a case, as JSON and as lines of a table. One thread. */
#include <stdio.h>
#include <string.h>

#include "tests/bench/kernels/bench.h"

static uint32_t sets_for(uint64_t bytes)
{
    const uint64_t n = ((UINT64_C(256) << 20) + bytes - 1) / bytes;

    return n > SETS_MAX ? SETS_MAX : (uint32_t)n;
}

static double us(uint64_t ns)
{
    return (double)ns * 1e-3;
}

static double percent(uint64_t rate, uint64_t of)
{
    return of > 0 ? (double)rate * 100 / (double)of : 0;
}

static void put_shape(struct report *r, const struct ps_shape *shape)
{
    if (shape == NULL) {
        ps_json_string(&r->json, "shape", "the library's");
        return;
    }
    ps_json_u64(&r->json, "blocks", shape->n_blocks);
    ps_json_u64(&r->json, "slots", shape->n_slots);
    ps_json_u64(&r->json, "chunk_bytes", shape->chunk_bytes);
    ps_json_u64(&r->json, "unit_bytes", shape->unit_bytes);
}

static const char *shape_text(const struct ps_shape *shape)
{
    static char text[80];

    if (shape == NULL) {
        return "as launched by the library";
    }
    snprintf(text, sizeof(text), "b %-4u %2u x %2u KiB u %-4u KiB", shape->n_blocks, shape->n_slots,
             shape->chunk_bytes >> 10, shape->unit_bytes >> 10);
    return text;
}

static void put_case(struct report *r, const struct shape_case *c, const struct tensors *t)
{
    ps_json_u64(&r->json, "bytes", c->bytes);
    ps_json_u64(&r->json, "tensors", c->n_tensors);
    ps_json_u64(&r->json, "page_bytes", c->page_bytes);
    ps_json_u64(&r->json, "uniform_permille", c->uniform_permille);
    ps_json_bool(&r->json, "ragged", c->ragged);
    ps_json_bool(&r->json, "on_host", c->on_host);
    ps_json_bool(&r->json, "sorted_list", c->sorted);
    ps_json_u64(&r->json, "sets", t->n_sets);
    ps_json_u64(&r->json, "pages", t->pages_of_set);
    ps_json_u64(&r->json, "stored_pages", t->stored_of_set);
}

static void put_driver(struct report *r, const struct shape_case *c, const struct driver_times *d)
{
    json_stats(&r->json, "driver_copy", &d->copy);
    ps_json_u64(&r->json, "driver_copy_train_ns", d->copy_train);
    json_stats(&r->json, "driver_fill", &d->fill);
    json_stats(&r->json, "empty_launch", &d->empty);
    json_stats(&r->json, "empty_launch_with_a_batch", &d->large);
    if (c->on_host) {
        json_stats(&r->json, "driver_to_host", &d->to_host);
        json_stats(&r->json, "driver_from_host", &d->from_host);
    }
}

static void say_case(const struct shape_case *c, const struct driver_times *d)
{
    fprintf(
        stderr,
        "\n%llu KiB in %u, pages of %u KiB, uniform %u/1000%s%s%s\n"
        "  driver: copy %.2f us (in a row %.2f) %.0f GB/s, fill %.2f; empty launch %.2f, with a batch %.2f",
        (unsigned long long)(c->bytes >> 10), c->n_tensors, c->page_bytes >> 10,
        c->uniform_permille, c->ragged ? ", ragged" : "", c->on_host ? ", on the host" : "",
        c->sorted ? ", sorted list" : "", us(d->copy.median), us(d->copy_train),
        (double)mb_s(2 * c->bytes, d->copy.median) * 1e-3, us(d->fill.median), us(d->empty.median),
        us(d->large.median));
    if (c->on_host) {
        fprintf(stderr, "; to host %.2f, from host %.2f GB/s",
                (double)mb_s(c->bytes, d->to_host.median) * 1e-3,
                (double)mb_s(c->bytes, d->from_host.median) * 1e-3);
    }
    fputc('\n', stderr);
}

/* Rates count what must move: on the device all is read and what is stored is written; else what crosses the link. */
static void put_times(struct report *r, const struct tensors *t, const struct driver_times *d,
                      const struct ps_shape *shape, struct outcome *o)
{
    const struct shape_case *c = &t->what;
    const struct times *m = &o->times;
    const uint64_t moved = c->on_host ? t->stored_bytes_of_set : c->bytes + t->stored_bytes_of_set;
    const uint64_t out_rate =
        mb_s(c->on_host ? c->bytes : 2 * c->bytes, c->on_host ? d->to_host.median : d->copy.median);
    const uint64_t in_rate = c->on_host ? mb_s(c->bytes, d->from_host.median) : out_rate;
    const uint64_t stash = mb_s(moved, m->stash.median);
    const uint64_t restore = mb_s(moved, m->restore.median);

    o->stash_percent = percent(stash, out_rate);
    o->restore_percent = percent(restore, in_rate);
    ps_json_open(&r->json, NULL, '{');
    put_shape(r, shape);
    json_stats(&r->json, "stash", &m->stash);
    json_stats(&r->json, "restore", &m->restore);
    ps_json_u64(&r->json, "stash_train_ns", m->stash_train);
    ps_json_u64(&r->json, "restore_train_ns", m->restore_train);
    ps_json_u64(&r->json, "stash_mb_s", stash);
    ps_json_u64(&r->json, "restore_mb_s", restore);
    ps_json_u64(&r->json, "stash_permille_of_driver", (uint64_t)(o->stash_percent * 10));
    ps_json_u64(&r->json, "restore_permille_of_driver", (uint64_t)(o->restore_percent * 10));
    ps_json_u64(&r->json, "wrong", m->wrong);
    ps_json_close(&r->json, '}');
    fprintf(
        stderr,
        "  %s  stash %8.2f us (%.2f..%.2f, in a row %.2f) %5.1f %%  restore %8.2f us (%.2f..%.2f, in a row "
        "%.2f) %5.1f %%%s\n",
        shape_text(shape), us(m->stash.median), us(m->stash.p10), us(m->stash.p90),
        us(m->stash_train), o->stash_percent, us(m->restore.median), us(m->restore.p10),
        us(m->restore.p90), us(m->restore_train), o->restore_percent,
        m->wrong != 0 ? "  WRONG" : "");
}

void report_case(struct report *r, struct bench *b, const struct shape_case *c,
                 const struct shapes *shapes, struct outcome *o)
{
    struct tensors t;
    struct driver_times d;
    const uint32_t sets = c->on_host ? 1 : sets_for(c->bytes);
    const uint32_t repeats = c->bytes >= UINT64_C(1) << 31 || c->on_host ? 3 : r->repeats;

    tensors_create(&t, b, c, sets);
    time_driver(b, &t, repeats, c->on_host, &d);
    ps_json_open(&r->json, NULL, '{');
    put_case(r, c, &t);
    put_driver(r, c, &d);
    say_case(c, &d);
    ps_json_open(&r->json, "kernels", '[');
    for (size_t i = 0; i < (shapes->n > 0 ? shapes->n : 1); i++) {
        const struct ps_shape *shape = shapes->n > 0 ? &shapes->shape[i] : NULL;

        memset(o, 0, sizeof(*o));
        time_kernels(b, &t, shape, repeats, &o->times);
        r->wrong += o->times.wrong;
        put_times(r, &t, &d, shape, o);
    }
    ps_json_close(&r->json, ']');
    ps_json_close(&r->json, '}');
    tensors_destroy(&t);
}

static void put_beside(struct report *r, const struct ps_shape *shape, const char *traffic,
                       const struct beside *s)
{
    ps_json_open(&r->json, NULL, '{');
    put_shape(r, shape);
    ps_json_string(&r->json, "traffic", traffic);
    ps_json_u64(&r->json, "alone_ns", s->alone_ns);
    ps_json_u64(&r->json, "beside_ns", s->beside_ns);
    ps_json_u64(&r->json, "slower_permille", s->slow_permille);
    ps_json_u64(&r->json, "payload_mb_s", s->payload_mb_s);
    ps_json_u64(&r->json, "payload_alone_mb_s", s->quiet_mb_s);
    ps_json_bool(&r->json, "ended_early", s->ended_early);
    ps_json_u64(&r->json, "wrong", s->wrong);
    ps_json_close(&r->json, '}');
    fprintf(
        stderr, "  %-19s %s  alone %.1f us, beside %.1f: +%.1f %%  %.1f GB/s (%.1f alone)%s%s\n",
        traffic, shape_text(shape), us(s->alone_ns), us(s->beside_ns),
        (double)s->slow_permille / 10, (double)s->payload_mb_s * 1e-3, (double)s->quiet_mb_s * 1e-3,
        s->ended_early ? " (ended early)" : "", s->wrong != 0 ? "  WRONG" : "");
}

void report_beside(struct report *r, struct bench *b, struct product *p, const struct shape_case *c,
                   const struct shapes *shapes, struct beside last[2])
{
    static const char *const names[] = {"stash and drop", "restore"};
    struct tensors t;
    struct beside s;

    tensors_create(&t, b, c, 2);
    ps_json_open(&r->json, NULL, '{');
    put_case(r, c, &t);
    ps_json_open(&r->json, "kernels", '[');
    fprintf(stderr, "\nbeside the product, %s\n",
            c->on_host ? "to and from the host" : "on the device");
    for (size_t i = 0; i < (shapes->n > 0 ? shapes->n : 1); i++) {
        for (int k = 0; k < 2; k++) {
            const struct ps_shape *shape = shapes->n > 0 ? &shapes->shape[i] : NULL;

            time_beside(b, p, &t, shape, k == 0 ? T_STASH_DROP : T_RESTORE, &last[k]);
            r->wrong += last[k].wrong;
            put_beside(r, shape, names[k], &last[k]);
        }
    }
    if (!c->on_host) {
        time_beside(b, p, &t, NULL, T_COPY, &s);
        put_beside(r, NULL, "driver's copy", &s);
    }
    ps_json_close(&r->json, ']');
    ps_json_close(&r->json, '}');
    tensors_destroy(&t);
}

struct link {
    struct bench *b;
    struct product *p;
    struct tensors t;
};

static void link_shapes(struct report *r, struct link *l, const struct shapes *shapes,
                        enum traffic kind, struct beside *last)
{
    const bool out = kind == T_SHIFT_OUT;

    for (size_t i = 0; i < (shapes->n > 0 ? shapes->n : 1); i++) {
        const struct ps_shape *shape = shapes->n > 0 ? &shapes->shape[i] : NULL;

        time_beside(l->b, l->p, &l->t, shape, kind, last);
        r->wrong += last->wrong;
        put_beside(r, shape, out ? "shift to the host" : "shift from the host", last);
    }
}

void report_link(struct report *r, struct bench *b, struct product *p, const struct shape_case *c,
                 const struct shapes shapes[2], struct beside last[4])
{
    struct link l = {.b = b, .p = p};

    tensors_create(&l.t, b, c, 1);
    ps_json_open(&r->json, NULL, '{');
    put_case(r, c, &l.t);
    ps_json_open(&r->json, "kernels", '[');
    fprintf(stderr, "\nbeside the product, pages in a row over the link\n");
    link_shapes(r, &l, &shapes[0], T_SHIFT_OUT, &last[0]);
    link_shapes(r, &l, &shapes[1], T_SHIFT_IN, &last[1]);
    time_beside(b, p, &l.t, NULL, T_TO_HOST_CE, &last[2]);
    put_beside(r, NULL, "copy engine, out", &last[2]);
    time_beside(b, p, &l.t, NULL, T_FROM_HOST_CE, &last[3]);
    put_beside(r, NULL, "copy engine, in", &last[3]);
    ps_json_close(&r->json, ']');
    ps_json_close(&r->json, '}');
    tensors_destroy(&l.t);
}
