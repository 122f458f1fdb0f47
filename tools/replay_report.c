/* SPDX-License-Identifier: Apache-2.0 */
/* What `pagedstash replay` prints, and the least that homes could move. One thread. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "policy/base/json.h"
#include "tools/replay.h"

#define NAMES_MAX 256

static const char *const classes[] = {
    [PS_PLAN_TEMPORARY] = "temporary",
    [PS_PLAN_STASH] = "stash",
    [PS_PLAN_RESIDENT] = "resident",
};

/* ---- sets ---- */

uint32_t ps_replay_names(const struct ps_plan *plan, struct ps_replay_name *names, uint32_t room)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < plan->n_sites; i++) { /* sorted by name */
        const struct ps_plan_site *site = &plan->sites[i];

        if (n == 0 || names[n - 1].name != site->name) {
            if (n == room) {
                break;
            }
            names[n++] = (struct ps_replay_name){.name = site->name};
        }
        if (site->class != PS_PLAN_TEMPORARY) {
            names[n - 1].home_bytes += site->home_bytes;
            names[n - 1].tail_bytes += site->bytes - site->home_bytes;
        }
    }
    for (uint32_t i = 0; i < plan->n_sets; i++) {
        for (uint32_t k = 0; k < n; k++) {
            names[k].n_sets += names[k].name == plan->sets[i].name;
        }
    }
    return n;
}

/* ---- the bound of what moves ---- */

/*
 * Homes are of fixed size, rows vary: with homes of so much memory in all, at least this moves. Each granule of a
 * home saves the valid bytes of the tensors that reach into it, less and less from the front to the back: so taking
 * the best first is best.
 */
struct granule {
    uint64_t saved;
    uint64_t cost;
};

struct stashed {
    uint32_t site;
    uint64_t valid;
};

static int by_site(const void *a, const void *b)
{
    const struct stashed *x = a, *y = b;

    if (x->site != y->site) {
        return x->site < y->site ? -1 : 1;
    }
    return x->valid < y->valid ? -1 : x->valid > y->valid;
}

static int by_gain(const void *a, const void *b)
{
    const struct granule *x = a, *y = b;
    const __uint128_t left = (__uint128_t)x->saved * y->cost;
    const __uint128_t right = (__uint128_t)y->saved * x->cost;

    return left > right ? -1 : left < right;
}

static uint32_t sets_of(const struct ps_plan *plan, uint32_t name)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < plan->n_sets; i++) {
        n += plan->sets[i].name == name;
    }
    return n;
}

/* The tensors of the step that leave, with known valid bytes. */
static uint32_t collect(const struct ps_replay *r, uint32_t step, struct stashed *out)
{
    const struct ps_plan_step *s = &r->steps[step];
    const struct ps_plan_moves *moves = &r->plan.moves[step];
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_tensors; i++) {
        const struct ps_plan_tensor *t = &s->tensors[i];
        const struct ps_plan_site *site = ps_plan_find(&r->plan, s->names[t->group], t->ordinal);

        if (site != NULL && site->class == PS_PLAN_STASH && moves->stash[t->group] &&
            t->valid != PS_PLAN_UNKNOWN) {
            out[n++] = (struct stashed){(uint32_t)(site - r->plan.sites), t->valid};
        }
    }
    qsort(out, n, sizeof(*out), by_site);
    return n;
}

/* Granules of the site that any of its n tensors reaches into. all: where they go, if not NULL. */
static uint32_t cut(const struct ps_replay *r, const struct stashed *t, uint32_t n,
                    struct granule *all)
{
    const struct ps_plan_site *site = &r->plan.sites[t->site];
    const uint64_t least = r->args->plan.granularity;
    const uint64_t unit = site->bytes / 256 > least ? site->bytes / 256 / least * least : least;
    const uint64_t cost = unit * sets_of(&r->plan, site->name);
    uint32_t count = 0, first = 0;

    for (uint64_t at = 0; at < t[n - 1].valid; at += unit, count++) {
        uint64_t saved = 0;

        while (t[first].valid <= at) {
            first++;
        }
        for (uint32_t i = first; i < n && all != NULL; i++) {
            saved += t[i].valid - at < unit ? t[i].valid - at : unit;
        }
        if (all != NULL) {
            all[count] = (struct granule){saved, cost};
        }
    }
    return count;
}

static uint64_t fill_homes(struct granule *all, uint32_t n, uint64_t homes, uint64_t valid)
{
    qsort(all, n, sizeof(*all), by_gain);
    for (uint32_t i = 0; i < n && homes > 0; i++) {
        const uint64_t part = all[i].cost <= homes ? all[i].cost : homes;

        valid -= (uint64_t)((__uint128_t)all[i].saved * part / all[i].cost);
        homes -= part;
    }
    return valid;
}

static bool bound_of_step(const struct ps_replay *r, uint32_t step, uint64_t *bytes_p)
{
    struct stashed *t = malloc((r->steps[step].n_tensors + 1u) * sizeof(*t));
    struct granule *all = NULL;
    uint32_t n_all = 0;
    uint64_t valid = 0;

    if (t == NULL) {
        return false;
    }
    const uint32_t n = collect(r, step, t);

    for (uint32_t pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            all = malloc((n_all + 1u) * sizeof(*all));
            if (all == NULL) {
                break;
            }
            n_all = 0;
        }
        for (uint32_t i = 0, next; i < n; i = next) {
            for (next = i; next < n && t[next].site == t[i].site; next++) {
                valid += pass == 1 ? t[next].valid : 0;
            }
            n_all += cut(r, &t[i], next - i, pass == 1 ? all + n_all : NULL);
        }
    }
    const bool ok = all != NULL;

    if (ok) {
        *bytes_p = 2 * fill_homes(all, n_all, r->plan.home_bytes, valid);
    }
    free(all);
    free(t);
    return ok;
}

bool ps_replay_bound(const struct ps_replay *r, uint64_t *bytes_p)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < r->n_steps; i++) {
        uint64_t bytes = 0;

        if (!bound_of_step(r, i, &bytes)) {
            return false;
        }
        most = bytes > most ? bytes : most;
    }
    *bytes_p = most;
    return true;
}

/* ---- text ---- */

/* "12.3 MiB". */
static const char *size_text(uint64_t bytes, char buf[24])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    unsigned unit = 0;
    uint64_t scale = 1;

    while (unit < 4 && bytes / scale >= 10240) {
        scale *= 1024;
        unit++;
    }
    if (unit == 0) {
        snprintf(buf, 24, "%" PRIu64 " B", bytes);
    } else {
        snprintf(buf, 24, "%" PRIu64 ".%u %s", bytes / scale,
                 (unsigned)(bytes % scale * 10 / scale), units[unit]);
    }
    return buf;
}

static void row(const char *name, uint64_t bytes, const char *doc)
{
    char text[24];

    printf("  %-14s %14s  %s\n", name, size_text(bytes, text), doc);
}

static void print_head(const struct ps_replay *r)
{
    const struct ps_trace *t = &r->trace;
    const struct ps_trace_context *c = r->context;

    printf("trace %s: %u events, %u tensors, %u steps (%u not complete)%s%s\n", r->args->file,
           t->n_events, c->n_tensors, c->n_steps, c->n_incomplete,
           t->old ? "; old form: regions' allocations only, no times" : "",
           t->cut ? "; the rest was not written" : "");
    if (r->args->assumed != NULL && r->play.n_assumed != 0) {
        printf("valid bytes assumed for %u tensors: %u.%06u of their size (%s)\n",
               r->play.n_assumed, r->args->trace.valid_parts / 1000000,
               r->args->trace.valid_parts % 1000000, r->args->assumed);
    } else if (r->play.n_told == 0) {
        puts("valid bytes are not in the trace: every tensor counts as full "
             "(--capacity or --valid-fraction says otherwise)");
    }
    for (uint32_t i = 0; i < r->n_steps; i++) {
        printf("kind %u: %" PRIu64 " steps of %u groups with %u tensors\n", r->kinds[i],
               r->context->segment.kinds[r->kinds[i]].count, r->steps[i].n_groups,
               r->steps[i].n_tensors);
    }
}

static const char *name_of(const struct ps_replay *r, uint32_t name)
{
    return name >= 1 && name <= r->play.n_names ? r->play.names[name - 1] : "?";
}

static void print_sites(const struct ps_replay *r)
{
    static struct ps_replay_name names[NAMES_MAX];
    const uint32_t n = ps_replay_names(&r->plan, names, NAMES_MAX);

    puts("\nsites");
    printf("  %-24s %5s  %-9s %14s %14s %5s\n", "region", "site", "class", "bytes", "home", "slot");
    for (uint32_t i = 0; i < r->plan.n_sites; i++) {
        const struct ps_plan_site *s = &r->plan.sites[i];
        char bytes[24], home[24], slot[16] = "-";

        if (s->slot != PS_PLAN_NONE) {
            snprintf(slot, sizeof(slot), "%u", s->slot);
        }
        printf("  %-24s %5u  %-9s %14s %14s %5s\n", name_of(r, s->name), s->ordinal,
               classes[s->class], size_text(s->bytes, bytes),
               s->class == PS_PLAN_TEMPORARY ? "-" : size_text(s->home_bytes, home), slot);
    }
    puts("\nsets");
    printf("  %-24s %5s %14s %14s\n", "region", "sets", "home of each", "tail");
    for (uint32_t i = 0; i < n; i++) {
        char home[24], tail[24];

        printf("  %-24s %5u %14s %14s\n", name_of(r, names[i].name), names[i].n_sets,
               size_text(names[i].home_bytes, home), size_text(names[i].tail_bytes, tail));
    }
}

static void print_moves(const struct ps_replay *r)
{
    const struct ps_plan *p = &r->plan;
    const uint64_t twice = 2 * p->valid_bytes;
    const uint64_t tenths = twice == 0 ? 0 : p->moved_bytes * 1000 / twice;

    puts("\nmoved in a step");
    row("valid", p->valid_bytes, "of the groups that leave");
    char doc[64];

    snprintf(doc, sizeof(doc), "out and back: %" PRIu64 ".%" PRIu64 " %% of twice the valid bytes",
             tenths / 10, tenths % 10);
    row("moved", p->moved_bytes, doc);
    row("bound", r->moved_bound, "the least with homes of that much memory");
    printf("  %-14s %14u  returns into a taken lane, groups without a set\n", "conflicts",
           p->n_conflicts);
    printf("  %-14s %14u  returns that could not be ahead\n", "late", p->n_late);
}

static void milliseconds(uint64_t ns, char buf[24])
{
    snprintf(buf, 24, "%" PRIu64 ".%02u ms", ns / 1000000, (unsigned)(ns / 10000 % 100));
}

static void print_least(const struct ps_replay_spill *s)
{
    puts("\nleast memory");
    row("outside", s->other_bytes, "the job holds outside its regions");
    row("group", s->group_bytes, "of tensors, the largest");
    row("lane", s->lane_bytes, "for tails");
    row("floor", s->other_bytes + s->group_bytes + s->lane_bytes, "of the three: less does not do");
}

static void print_budgets(const struct ps_replay *r)
{
    const struct ps_replay_spill *s = r->spill;
    char text[24];

    puts("\nless memory for homes and pages; the rest spills");
    if (s->step_ns == 0) {
        puts("  the trace has no times");
        return;
    }
    milliseconds(s->step_ns, text);
    printf("  a step takes %s%s; the link carries %" PRIu64 " MB/s each way\n", text,
           s->stretched ? " (calls of backward spread to its end)" : "",
           r->args->link_rate / 1000000);
    printf("  %12s %12s %12s %12s %12s %12s %10s %12s %10s\n", "homes+pages", "homes", "lanes",
           "peak", "spilled", "on the host", "waits", "whole first", "bound");
    for (uint32_t i = 0; i < s->n_budgets; i++) {
        const struct ps_replay_budget *b = &s->budgets[i];
        const uint64_t sizes[] = {b->bytes,      b->home_bytes, b->lane_bytes,
                                  b->peak_bytes, b->out_bytes,  b->host_bytes};
        char waits[3][24];

        fputs(" ", stdout);
        for (uint32_t k = 0; k < 6; k++) {
            printf(" %12s", size_text(sizes[k], text));
        }
        milliseconds(b->wait_ns, waits[0]);
        milliseconds(b->first_come_ns, waits[1]);
        milliseconds(b->bound_ns, waits[2]);
        printf(" %10s %12s %10s\n", waits[0], waits[1], waits[2]);
    }
    if (s->n_budgets == 0) {
        puts("  no homes are so small");
    }
    puts(
        "  waits: what is needed last goes first; whole first: whole tensors, first come on the device; bound: no "
        "rule waits less");
}

bool ps_replay_print(const struct ps_replay *r)
{
    const struct ps_plan *p = &r->plan;

    print_head(r);
    puts("\nmemory");
    row("plain", p->plain_peak_bytes, "peak of the job without a stash");
    row("plan", p->peak_bytes,
        p->adopt ? "peak with the plan: adopted" : "peak with the plan: not adopted");
    row("bound", p->bound_bytes, "no plan is below");
    row("homes", p->home_bytes, "of all sets");
    row("lanes", p->lane_bytes, "of all tails");
    row("pages", p->pool_bytes, "pool on the device");
    row("temporaries", p->temporary_bytes, "large ones, of the job's own allocator");
    row("spare", p->spare_bytes, "for one tail aside");
    row("sinks", p->group_tail_bytes, "of host memory for each group that is out");
    printf("  %-14s %14u\n", "lanes", p->n_lanes);
    printf("  %-14s %14u\n", "sets", p->n_sets);
    print_moves(r);
    print_least(r->spill);
    print_budgets(r);
    print_sites(r);
    return fflush(stdout) == 0;
}

/* ---- JSON ---- */

static void json_trace(struct ps_json *j, const struct ps_replay *r)
{
    ps_json_open(j, "trace", '{');
    ps_json_string(j, "file", r->args->file);
    ps_json_bool(j, "old", r->trace.old);
    ps_json_bool(j, "cut", r->trace.cut);
    ps_json_u64(j, "events", r->trace.n_events);
    ps_json_u64(j, "context", r->context->number);
    ps_json_u64(j, "tensors", r->context->n_tensors);
    ps_json_u64(j, "steps", r->context->n_steps);
    ps_json_u64(j, "incomplete_steps", r->context->n_incomplete);
    ps_json_u64(j, "valid_told", r->play.n_told);
    ps_json_u64(j, "valid_assumed", r->play.n_assumed);
    ps_json_u64(j, "valid_millionths", r->args->trace.valid_parts);
    ps_json_string(j, "valid_from", r->args->assumed);
    ps_json_open(j, "kinds", '[');
    for (uint32_t i = 0; i < r->n_steps; i++) {
        ps_json_open(j, NULL, '{');
        ps_json_u64(j, "kind", r->kinds[i]);
        ps_json_u64(j, "steps", r->context->segment.kinds[r->kinds[i]].count);
        ps_json_u64(j, "groups", r->steps[i].n_groups);
        ps_json_u64(j, "tensors", r->steps[i].n_tensors);
        ps_json_u64(j, "events", r->steps[i].n_events);
        ps_json_close(j, '}');
    }
    ps_json_close(j, ']');
    ps_json_close(j, '}');
}

static void json_settings(struct ps_json *j, const struct ps_replay_args *a)
{
    ps_json_open(j, "settings", '{');
    ps_json_u64(j, "granularity", a->plan.granularity);
    ps_json_u64(j, "page_bytes", a->plan.page_bytes);
    ps_json_u64(j, "moved_percent", a->plan.moved_percent);
    ps_json_u64(j, "pool_percent", a->plan.pool_percent);
    ps_json_u64(j, "min_bytes", a->trace.min_bytes);
    ps_json_string(j, "regions", a->trace.regions);
    ps_json_string(j, "step", a->trace.step);
    ps_json_close(j, '}');
}

static void json_plan(struct ps_json *j, const struct ps_replay *r)
{
    const struct ps_plan *p = &r->plan;

    ps_json_open(j, "plan", '{');
    ps_json_bool(j, "adopt", p->adopt);
    ps_json_u64(j, "plain_peak_bytes", p->plain_peak_bytes);
    ps_json_u64(j, "peak_bytes", p->peak_bytes);
    ps_json_u64(j, "bound_bytes", p->bound_bytes);
    ps_json_u64(j, "home_bytes", p->home_bytes);
    ps_json_u64(j, "lane_bytes", p->lane_bytes);
    ps_json_u64(j, "pool_bytes", p->pool_bytes);
    ps_json_u64(j, "temporary_bytes", p->temporary_bytes);
    ps_json_u64(j, "group_tail_bytes", p->group_tail_bytes);
    ps_json_u64(j, "valid_bytes", p->valid_bytes);
    ps_json_u64(j, "moved_bytes", p->moved_bytes);
    ps_json_u64(j, "moved_bound_bytes", r->moved_bound);
    ps_json_u64(j, "lanes", p->n_lanes);
    ps_json_u64(j, "slots", p->n_slots);
    ps_json_u64(j, "conflicts", p->n_conflicts);
    ps_json_u64(j, "late", p->n_late);
    ps_json_open(j, "sites", '[');
    for (uint32_t i = 0; i < p->n_sites; i++) {
        const struct ps_plan_site *s = &p->sites[i];

        ps_json_open(j, NULL, '{');
        ps_json_string(j, "region", name_of(r, s->name));
        ps_json_u64(j, "site", s->ordinal);
        ps_json_string(j, "class", classes[s->class]);
        ps_json_u64(j, "bytes", s->bytes);
        ps_json_u64(j, "home_bytes", s->home_bytes);
        if (s->slot != PS_PLAN_NONE) {
            ps_json_u64(j, "slot", s->slot);
        }
        ps_json_close(j, '}');
    }
    ps_json_close(j, ']');
    ps_json_open(j, "sets", '[');
    for (uint32_t i = 0; i < p->n_sets; i++) {
        ps_json_open(j, NULL, '{');
        ps_json_string(j, "region", name_of(r, p->sets[i].name));
        if (p->sets[i].lane != PS_PLAN_NONE) {
            ps_json_u64(j, "lane", p->sets[i].lane);
        }
        ps_json_close(j, '}');
    }
    ps_json_close(j, ']');
    ps_json_close(j, '}');
}

static void json_spill(struct ps_json *j, const struct ps_replay *r)
{
    const struct ps_replay_spill *s = r->spill;

    ps_json_open(j, "least", '{');
    ps_json_u64(j, "outside_bytes", s->other_bytes);
    ps_json_u64(j, "group_bytes", s->group_bytes);
    ps_json_u64(j, "lane_bytes", s->lane_bytes);
    ps_json_u64(j, "floor_bytes", s->other_bytes + s->group_bytes + s->lane_bytes);
    ps_json_close(j, '}');
    ps_json_open(j, "spill", '{');
    ps_json_u64(j, "step_ns", s->step_ns);
    ps_json_bool(j, "stretched", s->stretched);
    ps_json_u64(j, "link_bytes_per_s", r->args->link_rate);
    ps_json_open(j, "budgets", '[');
    for (uint32_t i = 0; i < s->n_budgets; i++) {
        const struct ps_replay_budget *b = &s->budgets[i];

        ps_json_open(j, NULL, '{');
        ps_json_u64(j, "bytes", b->bytes);
        ps_json_u64(j, "moved_percent", b->moved_percent);
        ps_json_u64(j, "home_bytes", b->home_bytes);
        ps_json_u64(j, "pool_bytes", b->pool_bytes);
        ps_json_u64(j, "lane_bytes", b->lane_bytes);
        ps_json_u64(j, "peak_bytes", b->peak_bytes);
        ps_json_u64(j, "out_bytes", b->out_bytes);
        ps_json_u64(j, "host_bytes", b->host_bytes);
        ps_json_u64(j, "wait_ns", b->wait_ns);
        ps_json_u64(j, "first_come_wait_ns", b->first_come_ns);
        ps_json_u64(j, "bound_wait_ns", b->bound_ns);
        ps_json_close(j, '}');
    }
    ps_json_close(j, ']');
    ps_json_close(j, '}');
}

bool ps_replay_print_json(const struct ps_replay *r)
{
    static char buffer[16384];
    struct ps_json j;

    ps_json_init(&j, buffer, sizeof(buffer), STDOUT_FILENO);
    ps_json_open(&j, NULL, '{');
    json_trace(&j, r);
    json_settings(&j, r->args);
    json_plan(&j, r);
    json_spill(&j, r);
    ps_json_close(&j, '}');
    return ps_json_finish(&j);
}
