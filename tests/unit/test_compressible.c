/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the device may keep compressed: asked for where it would do, and whatever the driver makes of that, there
 * is memory as fit for all else, of which it is known what it is, and none is left over. A driver that says what it is
 * told to.
 */
#include "shim/engine_int.h"
#include "tests/support/check_main.h"

#define BYTES ((uint64_t)1 << 21)

static struct ps_engine engine;

/* How the driver makes what is asked for as compressible. */
static bool refuses, makes_plain, loses_rdma, says_nothing;
static bool no_memory;

static CUmemAllocationProp made[4]; /* by handle, from 1 on */
static bool released[4];
static unsigned n_made;
static unsigned n_asked; /* compressible */

static CUresult create(CUmemGenericAllocationHandle *handle_p, size_t bytes,
                       const CUmemAllocationProp *prop, unsigned long long flags)
{
    const bool compressible = prop->allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_GENERIC;

    ck_assert_uint_eq(bytes, BYTES);
    ck_assert_uint_eq(flags, 0);
    n_asked += compressible;
    if (no_memory || (refuses && compressible)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    ck_assert_uint_lt(n_made, 3);
    made[++n_made] = *prop;
    if (compressible && makes_plain) {
        made[n_made].allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_NONE;
    }
    if (compressible && loses_rdma) {
        made[n_made].allocFlags.gpuDirectRDMACapable = 0;
    }
    *handle_p = n_made;
    return CUDA_SUCCESS;
}

static CUresult describe(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    ck_assert_uint_ge(handle, 1);
    ck_assert_uint_le(handle, n_made);
    if (says_nothing) {
        return CUDA_ERROR_UNKNOWN;
    }
    *prop = made[handle];
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    ck_assert_uint_ge(handle, 1);
    ck_assert_uint_le(handle, n_made);
    ck_assert(!released[handle]);
    released[handle] = true;
    return CUDA_SUCCESS;
}

static void setup(void)
{
    ps_driver.cuMemCreate = create;
    ps_driver.cuMemRelease = release;
    ps_driver.cuMemGetAllocationPropertiesFromHandle = describe;
    engine.compressible = true;
    engine.rdma = true;
}

/* Makes some, of which it is said whether it is compressible. */
static void expect(bool compressible, bool asked)
{
    CUmemGenericAllocationHandle handle = 0;
    bool said = !compressible;

    ck_assert_int_eq(ps_memory_create_compressible(&engine, BYTES, &handle, &said), CUDA_SUCCESS);
    ck_assert_uint_ge(handle, 1);
    ck_assert_uint_eq(handle, n_made);
    ck_assert(said == compressible);
    ck_assert(made[handle].allocFlags.compressionType ==
              (compressible ? CU_MEM_ALLOCATION_COMP_GENERIC : CU_MEM_ALLOCATION_COMP_NONE));
    ck_assert_uint_eq(made[handle].allocFlags.gpuDirectRDMACapable, engine.rdma);
    ck_assert_uint_eq(n_asked, asked);
    for (unsigned i = 1; i <= n_made; i++) {
        ck_assert(released[i] == (i != handle));
    }
}

START_TEST(it_is_had_where_the_device_can)
{
    expect(true, true);
}
END_TEST

START_TEST(it_is_not_asked_for_where_the_device_cannot)
{
    engine.compressible = false;
    expect(false, false);
}
END_TEST

START_TEST(it_is_not_asked_for_where_peers_read)
{
    engine.n_peers = 1;
    expect(false, false);
}
END_TEST

START_TEST(without_it_there_is_other)
{
    refuses = true;
    expect(false, true);
}
END_TEST

START_TEST(less_than_was_asked_for_is_known)
{
    makes_plain = true;
    expect(false, true);
    ck_assert_uint_eq(n_made, 1);
}
END_TEST

START_TEST(what_the_network_cannot_reach_does_not_do)
{
    loses_rdma = true;
    expect(false, true);
}
END_TEST

START_TEST(what_nobody_knows_does_not_do)
{
    says_nothing = true;
    expect(false, true);
}
END_TEST

START_TEST(no_memory_is_said)
{
    CUmemGenericAllocationHandle handle = 0;
    bool compressible = true;

    no_memory = true;
    ck_assert_int_eq(ps_memory_create_compressible(&engine, BYTES, &handle, &compressible),
                     CUDA_ERROR_OUT_OF_MEMORY);
    ck_assert(!compressible);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("compressible");
    TCase *t = tcase_create("compressible memory");

    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_test(t, it_is_had_where_the_device_can);
    tcase_add_test(t, it_is_not_asked_for_where_the_device_cannot);
    tcase_add_test(t, it_is_not_asked_for_where_peers_read);
    tcase_add_test(t, without_it_there_is_other);
    tcase_add_test(t, less_than_was_asked_for_is_known);
    tcase_add_test(t, what_the_network_cannot_reach_does_not_do);
    tcase_add_test(t, what_nobody_knows_does_not_do);
    tcase_add_test(t, no_memory_is_said);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
