/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of groups; see group.h. */
#include "policy/group.h"

bool ps_residency_may(enum ps_residency from, enum ps_residency to)
{
    switch (from) {
    case PS_RESIDENT:
        return to == PS_CACHED || to == PS_DEAD;
    case PS_CACHED:
        return to == PS_RESIDENT || to == PS_MOVING || to == PS_DEAD;
    case PS_OUT:
        return to == PS_MOVING || to == PS_DEAD;
    case PS_MOVING:
        return to == PS_RESIDENT || to == PS_OUT || to == PS_CACHED;
    case PS_DEAD:
        return to == PS_RESIDENT || to == PS_MOVING;
    default:
        return false;
    }
}

bool ps_group_may_leave(const struct ps_group_view *v)
{
    if (v->open || v->returned || v->crowded || !v->same_thread) {
        return false;
    }
    return v->n_pinned == 0 && v->n_movable > 0 && !v->foreign_pending && !v->lane_busy;
}

enum ps_scope ps_group_scope(bool last_alive, bool proven)
{
    if (last_alive) {
        return PS_SCOPE_RETURN;
    }
    return proven ? PS_SCOPE_TENSOR : PS_SCOPE_GROUP;
}
