/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: figures for test programs, exported beside the driver's functions. Any thread. */
#include <stdio.h>
#include <string.h>

#include "tools/simcuda/core.h"

SIM_API uint64_t simcuda_stat(const char *name);
SIM_API uint64_t simcuda_take_peak(void);

static uint64_t calls_of(const char *entry)
{
    for (const struct sim_count *c = sim_counts(); c != NULL; c = c->next) {
        if (strcmp(c->name, entry) == 0) {
            return c->calls;
        }
    }
    return 0;
}

/* UINT64_MAX for a name that is no figure. */
uint64_t simcuda_stat(const char *name)
{
    uint64_t value = UINT64_MAX;
    sim_lock();
    if (strcmp(name, "device_bytes_now") == 0) {
        value = sim_phys_used_all();
    } else if (strcmp(name, "device_bytes_peak") == 0) {
        value = sim_phys_peak();
    } else if (strcmp(name, "check_reports") == 0) {
        value = sim_check_reports();
    } else if (strncmp(name, "calls.", 6) == 0) {
        value = calls_of(name + 6);
    }
    sim_unlock();
    return value;
}

/* "device_bytes_peak"; what is in use now begins the next. Nothing comes between the two. */
uint64_t simcuda_take_peak(void)
{
    sim_lock();
    const uint64_t peak = sim_phys_peak();
    sim_phys_reset_peak();
    sim_unlock();
    return peak;
}
