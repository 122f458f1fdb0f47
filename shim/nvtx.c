/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each instance of NVTX (one a shared object) brings its own table of callback slots; all get the
 * same callbacks of ours. The tool's callbacks are the same for all its instances, in every tool
 * known; an instance where they differ is left to the tool alone, with a line.
 *
 * Pushes and pops are handed on in order for each thread, whatever their domain: domains that
 * overlap without nesting are not told apart. Registered strings are kept for good, in chains that
 * only grow at the head: no lock for readers, one compare-and-swap for writers.
 */
#include "shim/cuda_api.h"

#include "shim/nvtx.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

#include "policy/base/log.h"
#include "shim/dlsym.h"
#include "shim/engine.h"
#include "shim/entry.h"
#include "shim/tape.h"

#define NAME_MAX_BYTES 256u /* of a name made from wide characters */
#define N_BUCKETS      256u

/* The callbacks that we take: module, id, our function. */
#define CALLBACKS(_X)                                                                              \
    _X(CORE, RangePushEx, nvtxRangePushEx_impl_fntype)                                             \
    _X(CORE, RangePushA, nvtxRangePushA_impl_fntype)                                               \
    _X(CORE, RangePushW, nvtxRangePushW_impl_fntype)                                               \
    _X(CORE, RangePop, nvtxRangePop_impl_fntype)                                                   \
    _X(CORE2, DomainRangePushEx, nvtxDomainRangePushEx_impl_fntype)                                \
    _X(CORE2, DomainRangePop, nvtxDomainRangePop_impl_fntype)                                      \
    _X(CORE2, DomainRegisterStringA, nvtxDomainRegisterStringA_impl_fntype)                        \
    _X(CORE2, DomainRegisterStringW, nvtxDomainRegisterStringW_impl_fntype)

enum callback {
#define X(_module, _name, _type) CB_##_name,
    CALLBACKS(X)
#undef X
        N_CALLBACKS
};

static _Atomic(void *) tool_init; /* the tool's InitializeInjectionNvtx2; set from NULL */
static _Atomic(void *)
    tool_call[N_CALLBACKS]; /* its callbacks; set from NULL, before ours are installed */

#define TOOL(_name, _type)                                                                         \
    ((_type)atomic_load_explicit(&tool_call[CB_##_name], memory_order_acquire))

/* ---- registered strings ---- */

struct string {
    struct string *next; /* constant once published */
    nvtxStringHandle_t handle;
    nvtxDomainHandle_t domain;
    char text[];
};

static _Atomic(struct string *) strings[N_BUCKETS]; /* release when set, acquire when read */

static unsigned bucket_of(nvtxStringHandle_t handle)
{
    return (unsigned)(((uintptr_t)handle * UINT64_C(0x9e3779b97f4a7c15)) >> 56) % N_BUCKETS;
}

static const char *find_string(nvtxStringHandle_t handle)
{
    const struct string *s =
        atomic_load_explicit(&strings[bucket_of(handle)], memory_order_acquire);

    while (s != NULL && s->handle != handle) {
        s = s->next;
    }
    return s == NULL ? NULL : s->text;
}

/*
 * handle NULL: no tool gave one, so the string's own address is it. NULL when there is no memory.
 */
static nvtxStringHandle_t keep_string(nvtxDomainHandle_t domain, const char *text,
                                      nvtxStringHandle_t handle)
{
    if (handle != NULL && find_string(handle) != NULL) {
        return handle;
    }
    const size_t n = strlen(text) + 1;
    struct string *s = malloc(sizeof(*s) + n);

    if (s == NULL) {
        return handle;
    }
    s->handle = handle != NULL ? handle : (nvtxStringHandle_t)(void *)s;
    s->domain = domain;
    memcpy(s->text, text, n);
    _Atomic(struct string *) *head = &strings[bucket_of(s->handle)];

    s->next = atomic_load_explicit(head, memory_order_acquire);
    while (!atomic_compare_exchange_weak_explicit(head, &s->next, s, memory_order_release,
                                                  memory_order_acquire)) {
    }
    return s->handle;
}

/* ---- names ---- */

static unsigned encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | (c >> 18 & 0x07));
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

/* As UTF-8, cut at the buffer's end, or before the field that does not fit: half a number would be another one. */
static const char *narrow(const wchar_t *wide, char buf[NAME_MAX_BYTES])
{
    unsigned n = 0;

    for (; wide != NULL && *wide != L'\0' && n + 5 <= NAME_MAX_BYTES; wide++) {
        n += encode((uint32_t)*wide, buf + n);
    }
    buf[n] = '\0';
    char *const field = wide != NULL && *wide != L'\0' ? strrchr(buf, ';') : NULL;

    if (field != NULL) {
        *field = '\0';
    }
    return buf;
}

/* Never NULL: a range without a name must still be popped. */
static const char *name_of(const nvtxEventAttributes_t *event, char buf[NAME_MAX_BYTES])
{
    const char *name = NULL;

    if (event == NULL ||
        event->size < offsetof(nvtxEventAttributes_t, message) + sizeof(event->message)) {
        return "";
    }
    switch (event->messageType) {
    case NVTX_MESSAGE_TYPE_ASCII:
        name = event->message.ascii;
        break;
    case NVTX_MESSAGE_TYPE_UNICODE:
        name = narrow(event->message.unicode, buf);
        break;
    case NVTX_MESSAGE_TYPE_REGISTERED:
        name = find_string(event->message.registered);
        break;
    default:
        break;
    }
    return name == NULL ? "" : name;
}

/* ---- our callbacks ---- */

static void range_push(const char *name)
{
    if (ps_tape_on()) {
        ps_tape_push(name);
    }
    ps_region_push(name);
}

static void range_pop(void)
{
    if (ps_tape_on()) {
        ps_tape_pop();
    }
    ps_region_pop();
}

static int NVTX_API on_RangePushA(const char *message)
{
    const nvtxRangePushA_impl_fntype tool = TOOL(RangePushA, nvtxRangePushA_impl_fntype);

    range_push(message == NULL ? "" : message);
    return tool == NULL ? NVTX_NO_PUSH_POP_TRACKING : tool(message);
}

static int NVTX_API on_RangePushW(const wchar_t *message)
{
    const nvtxRangePushW_impl_fntype tool = TOOL(RangePushW, nvtxRangePushW_impl_fntype);
    char buf[NAME_MAX_BYTES];

    range_push(narrow(message, buf));
    return tool == NULL ? NVTX_NO_PUSH_POP_TRACKING : tool(message);
}

static int NVTX_API on_RangePushEx(const nvtxEventAttributes_t *event)
{
    const nvtxRangePushEx_impl_fntype tool = TOOL(RangePushEx, nvtxRangePushEx_impl_fntype);
    char buf[NAME_MAX_BYTES];

    range_push(name_of(event, buf));
    return tool == NULL ? NVTX_NO_PUSH_POP_TRACKING : tool(event);
}

static int NVTX_API on_RangePop(void)
{
    const nvtxRangePop_impl_fntype tool = TOOL(RangePop, nvtxRangePop_impl_fntype);

    range_pop();
    return tool == NULL ? NVTX_NO_PUSH_POP_TRACKING : tool();
}

static int NVTX_API on_DomainRangePushEx(nvtxDomainHandle_t domain,
                                         const nvtxEventAttributes_t *event)
{
    const nvtxDomainRangePushEx_impl_fntype tool =
        TOOL(DomainRangePushEx, nvtxDomainRangePushEx_impl_fntype);
    char buf[NAME_MAX_BYTES];

    range_push(name_of(event, buf));
    return tool == NULL ? NVTX_NO_PUSH_POP_TRACKING : tool(domain, event);
}

static int NVTX_API on_DomainRangePop(nvtxDomainHandle_t domain)
{
    const nvtxDomainRangePop_impl_fntype tool =
        TOOL(DomainRangePop, nvtxDomainRangePop_impl_fntype);

    range_pop();
    return tool == NULL ? NVTX_NO_PUSH_POP_TRACKING : tool(domain);
}

static nvtxStringHandle_t NVTX_API on_DomainRegisterStringA(nvtxDomainHandle_t domain,
                                                            const char *text)
{
    const nvtxDomainRegisterStringA_impl_fntype tool =
        TOOL(DomainRegisterStringA, nvtxDomainRegisterStringA_impl_fntype);
    const nvtxStringHandle_t handle = tool == NULL ? NULL : tool(domain, text);

    return text == NULL ? handle : keep_string(domain, text, handle);
}

static nvtxStringHandle_t NVTX_API on_DomainRegisterStringW(nvtxDomainHandle_t domain,
                                                            const wchar_t *text)
{
    const nvtxDomainRegisterStringW_impl_fntype tool =
        TOOL(DomainRegisterStringW, nvtxDomainRegisterStringW_impl_fntype);
    const nvtxStringHandle_t handle = tool == NULL ? NULL : tool(domain, text);
    char buf[NAME_MAX_BYTES];

    return text == NULL ? handle : keep_string(domain, narrow(text, buf), handle);
}

/* ---- attaching to one instance ---- */

struct slot {
    NvtxFunctionPointer *address; /* in the instance's table, or NULL */
    NvtxFunctionPointer before;   /* NVTX's own initialising function */
};

static const struct {
    NvtxCallbackModule module;
    unsigned id;
    NvtxFunctionPointer ours;
} callbacks[N_CALLBACKS] = {
#define X(_module, _name, _type)                                                                   \
    [CB_##_name] = {NVTX_CB_MODULE_##_module, NVTX_CBID_##_module##_##_name,                       \
                    (NvtxFunctionPointer)on_##_name},
    CALLBACKS(X)
#undef X
};

static bool find_slots(NvtxGetExportTableFunc_t get, struct slot slots[N_CALLBACKS])
{
    const NvtxExportTableCallbacks *table = get(NVTX_ETID_CALLBACKS);

    if (table == NULL ||
        table->struct_size < offsetof(NvtxExportTableCallbacks, GetModuleFunctionTable) +
                                 sizeof(table->GetModuleFunctionTable)) {
        return false;
    }
    for (unsigned i = 0; i < N_CALLBACKS; i++) {
        NvtxFunctionTable functions = NULL;
        unsigned size = 0;

        slots[i].address = NULL;
        /* Older instances have shorter tables; an id beyond the end is one they do not know. */
        if (table->GetModuleFunctionTable(callbacks[i].module, &functions, &size) != 0 &&
            functions != NULL && callbacks[i].id < size && functions[callbacks[i].id] != NULL) {
            slots[i].address = functions[callbacks[i].id];
            slots[i].before = *slots[i].address;
        }
    }
    return true;
}

/* True when the tool's callback, if it put one in, is the one that ours calls. */
static bool chain(enum callback i, const struct slot *s)
{
    void *const theirs = *s->address == s->before ? NULL : (void *)*s->address;
    void *expected = NULL;

    if (theirs == NULL || theirs == (void *)callbacks[i].ours) {
        return true;
    }
    return atomic_compare_exchange_strong(&tool_call[i], &expected, theirs) || expected == theirs;
}

static void attach(struct slot slots[N_CALLBACKS])
{
    for (unsigned i = 0; i < N_CALLBACKS; i++) {
        if (slots[i].address == NULL) {
            continue;
        }
        if (chain((enum callback)i, &slots[i])) {
            *slots[i].address = callbacks[i].ours;
        } else {
            ps_warn_once("another NVTX tool has different callbacks for one library: its ranges "
                         "are not seen");
        }
    }
}

/*
 * Called by NVTX. 0: not for us, go on without (also where we were loaded without being preloaded).
 */
int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get)
    __attribute__((visibility("default")));
static int initialize(NvtxGetExportTableFunc_t get);

int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get)
{
    return initialize(get);
}

static int initialize(NvtxGetExportTableFunc_t get)
{
    const NvtxInitializeInjectionNvtxFunc_t tool =
        (NvtxInitializeInjectionNvtxFunc_t)atomic_load_explicit(&tool_init, memory_order_acquire);
    struct slot slots[N_CALLBACKS];

    if (get == NULL) {
        return 0;
    }
    if (!ps_entry_active() || !find_slots(get, slots)) {
        return tool == NULL ? 0 : tool(get);
    }
    if (tool != NULL) {
        tool(get);
    }
    attach(slots);
    return 1;
}

void *ps_nvtx_answer(void *handle)
{
    void *const theirs = ps_libc_dlsym(handle, "InitializeInjectionNvtx2");
    void *expected = NULL;

    if (theirs == NULL || ps_in_us(theirs) || !ps_entry_active()) {
        return NULL;
    }
    if (!atomic_compare_exchange_strong(&tool_init, &expected, theirs) && expected != theirs) {
        return NULL; /* a second tool: only one can be chained */
    }
    return (void *)initialize;
}
