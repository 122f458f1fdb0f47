/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of what contradicts what: one row each. Pure functions, any thread. */
#include "policy/base/contradictions.h"

#include <stdio.h>

#define CUDA_BUDGET "PAGEDSTASH_CUDA_BUDGET"
#define CUDA_FACTOR "PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA"
#define HOST_BUDGET "PAGEDSTASH_HOST_BUDGET"
#define CPU_FACTOR  "PAGEDSTASH_BUFFER_SIZE_FACTOR_CPU"
#define PAGE_BYTES  "PAGEDSTASH_PAGE_BYTES"
#define PAGE_SIZE   "PAGEDSTASH_PAGE_SIZE"
#define PLAN        "PAGEDSTASH_PLAN"
#define MIN_BYTES   "PAGEDSTASH_MIN_BYTES"
#define WINDOW      "PAGEDSTASH_WINDOW_BYTES"

struct rule {
    const char *kept, *left_out;
    bool (*holds)(const struct ps_options *o);
    const char *why; /* what is wrong, and what to change */
};

static bool device_twice(const struct ps_options *o)
{
    return o->cuda_budget != PS_AUTO && ps_option_given(o, CUDA_FACTOR);
}

static bool host_twice(const struct ps_options *o)
{
    return o->host_budget != PS_AUTO && o->factor_cpu != PS_FACTOR_AUTO;
}

static bool page_twice(const struct ps_options *o)
{
    return o->page_bytes != PS_AUTO && ps_option_given(o, PAGE_SIZE);
}

static bool no_host(const struct ps_options *o)
{
    return o->host_budget == 0;
}

static bool no_host_factor(const struct ps_options *o)
{
    return o->factor_cpu == 0;
}

static bool nowhere_budgets(const struct ps_options *o)
{
    return no_host(o) && o->cuda_budget == 0;
}

static bool nowhere_budget_factor(const struct ps_options *o)
{
    return no_host(o) && o->factor_cuda == 0;
}

static bool nowhere_factor_budget(const struct ps_options *o)
{
    return no_host_factor(o) && o->cuda_budget == 0;
}

static bool nowhere_factors(const struct ps_options *o)
{
    return no_host_factor(o) && o->factor_cuda == 0;
}

static bool factor_without_plan(const struct ps_options *o)
{
    return !o->plan && ps_option_given(o, CUDA_FACTOR);
}

static bool cpu_factor_without_plan(const struct ps_options *o)
{
    return !o->plan && o->factor_cpu != PS_FACTOR_AUTO && o->factor_cpu != 0;
}

static bool narrow_window(const struct ps_options *o)
{
    return o->window_bytes < o->min_bytes;
}

#define NOWHERE "leave pages no memory at all: allow some on the device or the host"
#define NO_PLAN                                                                                           \
    "contradict each other: the factor is of what a plan has seen; set a budget in bytes, or leave " PLAN \
    " alone"

/* Of the device and the host: where one budget and its factor are both set, the factor is gone before the rest. */
static const struct rule rules[] = {
    {CUDA_BUDGET, CUDA_FACTOR, device_twice,
     "both say how much device memory homes and pages get: set one of them"},
    {HOST_BUDGET, CPU_FACTOR, host_twice,
     "both say how much host memory pages get: set one of them"},
    {PAGE_BYTES, PAGE_SIZE, page_twice, "both say how large a page is: set one of them"},
    {HOST_BUDGET, CUDA_BUDGET, nowhere_budgets, NOWHERE},
    {HOST_BUDGET, CUDA_FACTOR, nowhere_budget_factor, NOWHERE},
    {CPU_FACTOR, CUDA_BUDGET, nowhere_factor_budget, NOWHERE},
    {CPU_FACTOR, CUDA_FACTOR, nowhere_factors, NOWHERE},
    {PLAN, CUDA_FACTOR, factor_without_plan, NO_PLAN},
    {PLAN, CPU_FACTOR, cpu_factor_without_plan, NO_PLAN},
    {MIN_BYTES, WINDOW, narrow_window,
     "leave no tensor room: the window must hold the smallest tensor that is taken over"},
};
#define N_RULES ((unsigned)(sizeof(rules) / sizeof(rules[0])))

static uint8_t source_of(const struct ps_options *o, const char *name)
{
    return o->source[ps_option_find(name) - ps_option_table];
}

static void leave_out(struct ps_options *o, const char *name)
{
    const struct ps_option *opt = ps_option_find(name);

    (void)ps_option_set(o, opt, opt->text);
    o->source[opt - ps_option_table] = PS_FROM_DEFAULT;
}

bool ps_contradiction_next(struct ps_options *o, unsigned *rule_p, char *buf, size_t size)
{
    while (*rule_p < N_RULES) {
        const struct rule *r = &rules[(*rule_p)++];

        if (!r->holds(o)) {
            continue;
        }
        const uint8_t kept = source_of(o, r->kept);
        const uint8_t other = source_of(o, r->left_out);

        if (kept != other && kept != PS_FROM_DEFAULT) {
            leave_out(o, kept < other ? r->kept : r->left_out);
            continue;
        }
        snprintf(buf, size, "'%s' and '%s' %s; leaving out '%s'", r->kept, r->left_out, r->why,
                 r->left_out);
        leave_out(o, r->left_out);
        return true;
    }
    return false;
}
