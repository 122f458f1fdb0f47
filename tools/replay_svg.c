/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A picture of a step under its plan: time across, memory down. The rules of lanes.h are run over the step once more;
 * what is in its place, on its way or out becomes a rectangle. One thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/lanes.h"
#include "tools/replay.h"

#define WIDTH       1200.0
#define HEIGHT      640.0
#define LEFT        96.0
#define TOP         56.0
#define HOST_HEIGHT 110.0
#define HOST_GAP    46.0
#define NAMES_MAX   256
#define NONE        PS_PLAN_NONE

enum area { HOME, TAIL, TEMPORARY, PAGE, OTHER, SINK, N_AREAS };

static const struct {
    const char *name, *fill, *doc;
} areas[N_AREAS] = {
    [HOME] = {"home", "#3b7dd8", "homes: never copied"},
    [TAIL] = {"tail", "#e08a2e", "lanes: tails of who is in"},
    [TEMPORARY] = {"temporary", "#8a8f98", "temporaries"},
    [PAGE] = {"page", "#3f9d5a", "pages of who is out"},
    [OTHER] = {"other", "#d9dce1", "the job's other memory"},
    [SINK] = {"sink", "#8e5fb0", "host memory: sinks"},
};

/* What of a group is drawn when it ends. Times are events; NONE: it is not there. */
struct shown {
    struct ps_lanes_group lanes; /* first: the rules know a group by it */
    uint32_t home_from, tail_from, out_from;
    uint64_t page_at, page_bytes; /* in the pool while out */
    uint32_t n_live;              /* tensors that are no temporaries */
};

/* Places of different sizes, first fit. */
struct place {
    uint64_t at, bytes;
    uint32_t owner;
};
struct places {
    struct place *used;
    uint32_t n, room;
};

struct drawing {
    const struct ps_replay *r;
    const struct ps_plan_step *step;
    const struct ps_plan_moves *moves;
    FILE *f;
    struct ps_lanes rules;
    struct shown *groups;
    struct places pages, temporaries;
    struct place *temporary; /* of each tensor; bytes 0: none */
    uint32_t *born;          /* of each tensor */
    uint64_t *set_home;      /* offset of each set's home */
    uint64_t *sink;          /* bytes of sinks in use, at each event */
    struct ps_replay_name names[NAMES_MAX];
    uint64_t base[N_AREAS];       /* where each area begins */
    uint64_t top_bytes;           /* the scale's end */
    uint64_t sink_bytes;          /* now */
    uint32_t n_names, at, number; /* of the step */
    uint64_t *times;              /* of the events */
    bool timed;
    bool failed; /* no memory */
};

/* ---- scales ---- */

static double x_of(const struct drawing *d, uint32_t event)
{
    const uint32_t last = d->step->n_events - 1;

    if (!d->timed) {
        return LEFT + WIDTH * event / (last == 0 ? 1 : last);
    }
    const uint64_t end = d->times[last];

    return LEFT +
           WIDTH * (double)d->times[event > last ? last : event] / (double)(end == 0 ? 1 : end);
}

static double y_of(const struct drawing *d, uint64_t bytes)
{
    return TOP + HEIGHT * (double)bytes / (double)d->top_bytes;
}

static void rect(const struct drawing *d, enum area area, uint32_t group, uint32_t from,
                 const struct place *p)
{
    const double x = x_of(d, from), width = x_of(d, d->at) - x;
    const double y = y_of(d, d->base[area] + p->at);
    const double height = y_of(d, d->base[area] + p->at + p->bytes) - y;

    if (p->bytes == 0 || width <= 0) {
        return;
    }
    fprintf(d->f,
            "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.2f\""
            " fill-opacity=\"%s\"><title>group %u</title></rect>\n",
            areas[area].name, x, y, width, height, group % 2 == 0 ? "0.9" : "0.65", group);
    if (height > 9 && width > 18) {
        fprintf(d->f, "<text class=\"n\" x=\"%.1f\" y=\"%.1f\">%u</text>\n", x + 2,
                y + height / 2 + 3, group);
    }
}

/* ---- places ---- */

static uint64_t take(struct drawing *d, struct places *p, uint32_t owner, uint64_t bytes)
{
    uint64_t at = 0;
    uint32_t i = 0;

    while (i < p->n && p->used[i].at - at < bytes) {
        at = p->used[i].at + p->used[i].bytes;
        i++;
    }
    if (p->n == p->room) {
        void *more = realloc(p->used, (2 * (size_t)p->room + 16) * sizeof(*p->used));

        if (more == NULL) {
            d->failed = true;
            return 0;
        }
        p->used = more;
        p->room = 2 * p->room + 16;
    }
    memmove(&p->used[i + 1], &p->used[i], (p->n - i) * sizeof(*p->used));
    p->used[i] = (struct place){at, bytes, owner};
    p->n++;
    return at;
}

static void give(struct places *p, uint32_t owner)
{
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->used[i].owner == owner) {
            memmove(&p->used[i], &p->used[i + 1], (p->n - i - 1) * sizeof(*p->used));
            p->n--;
            return;
        }
    }
}

/* ---- what moves ---- */

static uint32_t number_of(const struct drawing *d, const struct ps_lanes_group *g)
{
    return (uint32_t)((const struct shown *)(const void *)g - d->groups);
}

static const struct ps_plan_site *site_of(const struct drawing *d, uint32_t tensor)
{
    const struct ps_plan_tensor *t = &d->step->tensors[tensor];

    return ps_plan_find(&d->r->plan, d->step->names[t->group], t->ordinal);
}

/* What of the group is in pages while it is out: valid bytes behind its homes, in whole pages. */
static uint64_t pages_of(const struct drawing *d, uint32_t group)
{
    const uint64_t page = d->r->args->plan.page_bytes;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < d->step->n_tensors; i++) {
        const struct ps_plan_tensor *t = &d->step->tensors[i];
        const struct ps_plan_site *site = t->group == group ? site_of(d, i) : NULL;

        if (site == NULL || site->class != PS_PLAN_STASH) {
            continue;
        }
        const uint64_t valid = t->valid == PS_PLAN_UNKNOWN ? t->bytes : t->valid;

        sum += valid > site->home_bytes ? (valid - site->home_bytes + page - 1) / page * page : 0;
    }
    return sum;
}

static const struct ps_replay_name *name_of(const struct drawing *d, uint32_t group)
{
    for (uint32_t i = 0; i < d->n_names; i++) {
        if (d->names[i].name == d->step->names[group]) {
            return &d->names[i];
        }
    }
    return &d->names[0];
}

static void leave(struct drawing *d, struct ps_lanes_group *g)
{
    const uint32_t group = number_of(d, g);
    struct shown *s = &d->groups[group];

    s->out_from = d->at;
    s->page_bytes = pages_of(d, group);
    s->page_at = take(d, &d->pages, group, s->page_bytes);
    d->sink_bytes += name_of(d, group)->tail_bytes;
}

static void come(struct drawing *d, struct ps_lanes_group *g)
{
    const uint32_t group = number_of(d, g);
    struct shown *s = &d->groups[group];

    if (s->out_from == NONE) {
        return;
    }
    const struct place p = {s->page_at, s->page_bytes, group};

    rect(d, PAGE, group, s->out_from, &p);
    give(&d->pages, group);
    s->out_from = NONE;
    d->sink_bytes -= name_of(d, group)->tail_bytes;
}

static void end_tail(struct drawing *d, struct ps_lanes_group *g, uint32_t lane)
{
    struct shown *s = &d->groups[number_of(d, g)];
    const uint64_t lane_bytes =
        d->rules.n_lanes == 0 ? 0 : d->r->plan.lane_bytes / d->rules.n_lanes;
    const struct place p = {lane * lane_bytes, lane_bytes, 0};

    if (s->tail_from != NONE && lane != NONE) {
        rect(d, TAIL, number_of(d, g), s->tail_from, &p);
    }
    s->tail_from = NONE;
}

static void took(struct drawing *d, struct ps_lanes_group *g, const struct ps_lanes_taken *taken)
{
    if (taken->before != NULL) {
        if (taken->now) {
            leave(d, taken->before);
        }
        end_tail(d, taken->before, taken->lane);
    }
    if (taken->lane != NONE) {
        d->groups[number_of(d, g)].tail_from = d->at;
    }
}

static void boundary(struct drawing *d, const struct ps_lanes_group *but)
{
    struct ps_lanes_group *leaving[PS_LANES_MAX];
    const uint32_t n = ps_lanes_boundary(&d->rules, but, leaving);

    for (uint32_t i = 0; i < n; i++) {
        leave(d, leaving[i]);
    }
}

static void ahead(struct drawing *d, uint32_t group)
{
    struct ps_lanes_taken taken;
    struct ps_lanes_group *g = group == NONE ? NULL : &d->groups[group].lanes;

    if (ps_lanes_ahead(&d->rules, g, &taken)) {
        took(d, g, &taken);
        come(d, g);
    }
}

static uint32_t lane_of(const struct drawing *d, const struct ps_lanes_group *g)
{
    return g->owns ? d->r->plan.sets[g->set].lane : NONE;
}

static void die(struct drawing *d, uint32_t group)
{
    struct shown *s = &d->groups[group];

    come(d, &s->lanes);
    if (s->lanes.owns) {
        const struct place p = {d->set_home[s->lanes.set], name_of(d, group)->home_bytes, group};

        rect(d, HOME, group, s->home_from, &p);
        end_tail(d, &s->lanes, lane_of(d, &s->lanes));
    }
    struct ps_lanes_group *next = ps_lanes_free(&d->rules, &s->lanes);

    if (next != NULL) {
        come(d, next);
        d->groups[number_of(d, next)].tail_from = d->at;
    }
}

/* ---- events ---- */

static void on_alloc(struct drawing *d, uint32_t tensor)
{
    const uint32_t group = d->step->tensors[tensor].group;
    const struct ps_plan_site *site = site_of(d, tensor);
    struct shown *s = &d->groups[group];
    struct ps_lanes_taken taken;

    d->born[tensor] = d->at;
    if (site == NULL) {
        return;
    }
    if (site->class == PS_PLAN_TEMPORARY) {
        d->temporary[tensor].bytes = site->bytes;
        d->temporary[tensor].at = take(d, &d->temporaries, tensor, site->bytes);
        return;
    }
    s->n_live++;
    if (!s->lanes.owns && s->home_from == NONE) {
        s->home_from = d->at;
        if (ps_lanes_acquire(&d->rules, &s->lanes, d->step->names[group], d->moves->set[group],
                             &taken)) {
            took(d, &s->lanes, &taken);
        }
    }
}

static void on_free(struct drawing *d, uint32_t tensor)
{
    const uint32_t group = d->step->tensors[tensor].group;
    struct shown *s = &d->groups[group];

    if (d->temporary[tensor].bytes != 0) {
        rect(d, TEMPORARY, group, d->born[tensor], &d->temporary[tensor]);
        give(&d->temporaries, tensor);
    } else if (s->n_live > 0 && --s->n_live == 0 && s->lanes.closed) {
        die(d, group);
    }
}

static void on_return(struct drawing *d, uint32_t group)
{
    struct ps_lanes_group *g = &d->groups[group].lanes;
    struct ps_lanes_taken taken;

    boundary(d, g);
    switch (ps_lanes_return(&d->rules, g, &taken)) {
    case PS_LANES_CAME_IN:
        took(d, g, &taken);
        come(d, g);
        break;
    case PS_LANES_CAME_BACK:
    case PS_LANES_CAME_APART:
        come(d, g);
        break;
    case PS_LANES_CAME_NOT:
    case PS_LANES_WAS_IN:
    default:
        break;
    }
    ahead(d, d->moves->after_return[group]);
}

static void on_pop(struct drawing *d, uint32_t group)
{
    struct shown *s = &d->groups[group];

    ps_lanes_close(&d->rules, &s->lanes);
    if (ps_lanes_leave(&d->rules, &s->lanes)) {
        leave(d, &s->lanes);
    }
    if (s->home_from != NONE && s->n_live == 0) {
        die(d, group);
    }
    ahead(d, d->moves->after_push[group]);
}

static void draw_events(struct drawing *d)
{
    for (d->at = 0; d->at < d->step->n_events; d->at++) {
        const struct ps_plan_event *e = &d->step->events[d->at];

        switch ((enum ps_plan_kind)e->kind) {
        case PS_PLAN_PUSH:
            boundary(d, NULL);
            break;
        case PS_PLAN_POP:
            on_pop(d, e->index);
            break;
        case PS_PLAN_ALLOC:
            on_alloc(d, e->index);
            break;
        case PS_PLAN_FREE:
            on_free(d, e->index);
            break;
        case PS_PLAN_RETURN:
            on_return(d, e->index);
            break;
        default:
            break;
        }
        d->sink[d->at] = d->sink_bytes;
    }
    d->at = d->step->n_events - 1;
    for (uint32_t g = 0; g < d->step->n_groups; g++) {
        if (d->groups[g].n_live != 0) {
            die(d, g);
        }
    }
}

/* ---- curves ---- */

/* From (time, 0) to (time, bytes[]), as steps. */
static void draw_steps(const struct drawing *d, const uint64_t *bytes, double top, double scale)
{
    for (uint32_t i = 0; i < d->step->n_events; i++) {
        const double x = x_of(d, i);

        fprintf(d->f, " %.1f,%.1f %.1f,%.1f", x, top + scale * (double)bytes[i == 0 ? 0 : i - 1], x,
                top + scale * (double)bytes[i]);
    }
}

static void draw_other(const struct drawing *d, uint64_t *scratch)
{
    const double base = y_of(d, d->base[OTHER]);

    for (uint32_t i = 0; i < d->step->n_events; i++) {
        scratch[i] = d->step->events[i].other_bytes;
    }
    fprintf(d->f, "<polygon class=\"other\" points=\"%.1f,%.1f", LEFT, base);
    draw_steps(d, scratch, base, HEIGHT / (double)d->top_bytes);
    fprintf(d->f, " %.1f,%.1f\"/>\n", LEFT + WIDTH, base);
}

static void draw_plain(const struct drawing *d, uint64_t *scratch)
{
    uint64_t live = 0;

    for (uint32_t i = 0; i < d->step->n_events; i++) {
        const struct ps_plan_event *e = &d->step->events[i];

        if (e->kind == PS_PLAN_ALLOC) {
            live += d->step->tensors[e->index].bytes;
        } else if (e->kind == PS_PLAN_FREE) {
            live -= d->step->tensors[e->index].bytes;
        }
        scratch[i] = live + e->other_bytes;
    }
    fputs("<polyline class=\"plain\" points=\"", d->f);
    draw_steps(d, scratch, TOP, HEIGHT / (double)d->top_bytes);
    fputs("\"/>\n", d->f);
}

static void draw_host(const struct drawing *d)
{
    const double top = TOP + HEIGHT + HOST_GAP;
    uint64_t most = 1;

    for (uint32_t i = 0; i < d->step->n_events; i++) {
        most = d->sink[i] > most ? d->sink[i] : most;
    }
    fprintf(d->f,
            "<text x=\"%.0f\" y=\"%.0f\">host memory: sinks of who is out, at most %" PRIu64
            " MiB</text>\n<polygon class=\"sink\" points=\"%.1f,%.1f",
            LEFT, top - 8, most >> 20, LEFT, top);
    draw_steps(d, d->sink, top, HOST_HEIGHT / (double)most);
    fprintf(d->f, " %.1f,%.1f\"/>\n", LEFT + WIDTH, top);
}

/* ---- the frame ---- */

static void draw_head(const struct drawing *d)
{
    fprintf(d->f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n<style>\n.n{font-size:9px;fill:#fff}\n"
            ".plain{fill:none;stroke:#c03030;stroke-dasharray:5 3;stroke-width:1.5}\n"
            ".frame{fill:none;stroke:#666}\n",
            LEFT + WIDTH + 24, TOP + HEIGHT + HOST_GAP + HOST_HEIGHT + 40);
    for (unsigned i = 0; i < N_AREAS; i++) {
        fprintf(d->f, ".%s{fill:%s}\n", areas[i].name, areas[i].fill);
    }
    fprintf(d->f,
            "</style>\n<rect x=\"0\" y=\"0\" width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n");
    for (unsigned i = 0; i <= N_AREAS; i++) {
        const double x = LEFT + i * 172.0;

        if (i < N_AREAS) {
            fprintf(d->f,
                    "<rect class=\"%s\" x=\"%.0f\" y=\"12\" width=\"12\" height=\"12\"/>"
                    "<text x=\"%.0f\" y=\"22\">%s</text>\n",
                    areas[i].name, x, x + 16, areas[i].doc);
        } else {
            fprintf(d->f,
                    "<line class=\"plain\" x1=\"%.0f\" y1=\"18\" x2=\"%.0f\" y2=\"18\"/>"
                    "<text x=\"%.0f\" y=\"22\">without a stash</text>\n",
                    x, x + 24, x + 28);
        }
    }
}

static void draw_axes(const struct drawing *d)
{
    uint64_t tick = UINT64_C(1) << 12;

    while (d->top_bytes / tick > 12) {
        tick *= 2;
    }
    for (uint64_t at = 0; at <= d->top_bytes; at += tick) {
        const bool mib = tick >= UINT64_C(1) << 20;

        fprintf(d->f,
                "<line class=\"frame\" x1=\"%.0f\" y1=\"%.1f\" x2=\"%.0f\" y2=\"%.1f\"/>"
                "<text text-anchor=\"end\" x=\"%.0f\" y=\"%.1f\">%" PRIu64 " %s</text>\n",
                LEFT - 5, y_of(d, at), LEFT, y_of(d, at), LEFT - 8, y_of(d, at) + 4,
                mib ? at >> 20 : at >> 10, mib ? "MiB" : "KiB");
    }
    const uint64_t ns = d->times[d->step->n_events - 1];

    fprintf(d->f,
            "<rect class=\"frame\" x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\"/>\n"
            "<text x=\"%.0f\" y=\"%.0f\">device memory, downwards: homes, lanes, temporaries, "
            "pages, the job's other memory; ",
            LEFT, TOP, WIDTH, HEIGHT, LEFT, TOP - 8);
    if (d->timed) {
        fprintf(d->f, "time across: %" PRIu64 ".%" PRIu64 " ms</text>\n", ns / 1000000,
                ns / 100000 % 10);
    } else {
        fprintf(d->f, "events across: %u</text>\n", d->step->n_events);
    }
}

/* ---- setting up ---- */

static void set_areas(struct drawing *d)
{
    const struct ps_plan *p = &d->r->plan;
    const uint64_t most = p->peak_bytes > p->plain_peak_bytes ? p->peak_bytes : p->plain_peak_bytes;

    d->base[HOME] = 0;
    d->base[TAIL] = p->home_bytes;
    d->base[TEMPORARY] = d->base[TAIL] + p->lane_bytes;
    d->base[PAGE] = d->base[TEMPORARY] + p->temporary_bytes;
    d->base[OTHER] = d->base[PAGE] + p->pool_bytes;
    d->top_bytes = (most > d->base[OTHER] ? most : d->base[OTHER]) + 1;
    d->n_names = ps_replay_names(p, d->names, NAMES_MAX);
    uint64_t at = 0;

    for (uint32_t i = 0; i < p->n_sets; i++) {
        d->set_home[i] = at;
        for (uint32_t k = 0; k < d->n_names; k++) {
            at += d->names[k].name == p->sets[i].name ? d->names[k].home_bytes : 0;
        }
    }
}

static bool prepare(struct drawing *d)
{
    const struct ps_plan_step *s = d->step;
    struct ps_replay_spill times;

    d->times = calloc(s->n_events + 1u, sizeof(*d->times));
    d->groups = calloc(s->n_groups + 1u, sizeof(*d->groups));
    d->temporary = calloc(s->n_tensors + 1u, sizeof(*d->temporary));
    d->born = calloc(s->n_tensors + 1u, sizeof(*d->born));
    d->set_home = calloc(d->r->plan.n_sets + 1u, sizeof(*d->set_home));
    d->sink = calloc(s->n_events + 1u, sizeof(*d->sink));
    if (d->times == NULL || d->groups == NULL || d->temporary == NULL || d->born == NULL ||
        d->set_home == NULL || d->sink == NULL) {
        return false;
    }
    for (uint32_t g = 0; g < s->n_groups; g++) {
        d->groups[g].lanes.stash = d->moves->stash[g];
        d->groups[g].home_from = d->groups[g].tail_from = d->groups[g].out_from = NONE;
    }
    d->timed = ps_replay_times(d->r, d->number, d->times, &times);
    set_areas(d);
    return ps_plan_lanes(&d->r->plan, &d->rules) == PS_OK;
}

static void draw(struct drawing *d)
{
    uint64_t *scratch = calloc(d->step->n_events + 1u, sizeof(*scratch));

    if (scratch == NULL) {
        d->failed = true;
        return;
    }
    draw_head(d);
    draw_other(d, scratch);
    draw_events(d);
    draw_plain(d, scratch);
    draw_host(d);
    draw_axes(d);
    fputs("</svg>\n", d->f);
    free(scratch);
}

bool ps_replay_draw(const struct ps_replay *r, const char *path, uint32_t step)
{
    static struct drawing d; /* names: too much for the stack */

    d = (struct drawing){
        .r = r, .step = &r->steps[step], .number = step, .moves = &r->plan.moves[step]};
    d.f = fopen(path, "we");
    if (d.f == NULL) {
        fprintf(stderr, "pagedstash replay: cannot write '%s': %s\n", path, strerror(errno));
        return false;
    }
    if (prepare(&d)) {
        draw(&d);
    } else {
        d.failed = true;
    }
    const bool written = ferror(d.f) == 0;
    const bool closed = fclose(d.f) == 0;

    if (d.failed) {
        fputs("pagedstash replay: no memory for the picture\n", stderr);
    } else if (!written || !closed) {
        fprintf(stderr, "pagedstash replay: cannot write '%s': %s\n", path, strerror(errno));
    }
    ps_lanes_fini(&d.rules);
    free(d.times);
    free(d.groups);
    free(d.temporary);
    free(d.born);
    free(d.set_home);
    free(d.sink);
    free(d.pages.used);
    free(d.temporaries.used);
    return !d.failed && written && closed;
}
