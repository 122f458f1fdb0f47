/* SPDX-License-Identifier: Apache-2.0 */
/* Pipeline schedules; see schedule.h. */
#include "tools/demo/schedule.h"

static int64_t passes(const struct demo_schedule *s)
{
    return s->microbatches * s->chunks;
}

static int64_t warm_up(const struct demo_schedule *s)
{
    int64_t n = s->stages - s->stage - 1;
    if (s->kind == DEMO_SCHEDULE_DEFAULT) {
        n = 0;
    } else if (s->kind == DEMO_SCHEDULE_INTERLEAVED) {
        n = 2 * n + (s->chunks - 1) * s->stages;
    }
    return n < passes(s) ? n : passes(s);
}

int64_t demo_schedule_turns(const struct demo_schedule *s)
{
    return 2 * passes(s);
}

int64_t demo_schedule_in_flight(const struct demo_schedule *s)
{
    const int64_t n = warm_up(s) + 1;
    return n < passes(s) ? n : passes(s);
}

/* The i-th pass of one direction. */
static struct demo_turn pass(const struct demo_schedule *s, int64_t i, bool backward)
{
    const int64_t group = i / (s->stages * s->chunks), at = i % (s->stages * s->chunks);
    struct demo_turn turn = {.backward = backward, .microbatch = i};
    if (s->kind == DEMO_SCHEDULE_INTERLEAVED) {
        turn.microbatch = group * s->stages + at % s->stages;
        turn.chunk = at / s->stages;
        turn.chunk = backward ? s->chunks - 1 - turn.chunk : turn.chunk;
    }
    return turn;
}

struct demo_turn demo_schedule_turn(const struct demo_schedule *s, int64_t i)
{
    const int64_t warm = warm_up(s), steady = i - warm;
    if (steady < 0) {
        return pass(s, i, false);
    }
    if (steady < 2 * (passes(s) - warm)) {
        const int64_t pair = steady / 2;
        return steady % 2 == 0 ? pass(s, warm + pair, false) : pass(s, pair, true);
    }
    return pass(s, i - passes(s), true);
}

bool demo_schedule_sends(const struct demo_schedule *s, int64_t chunk)
{
    return s->stage < s->stages - 1 || chunk < s->chunks - 1;
}
