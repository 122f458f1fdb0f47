/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two instances of NVTX, this program's and a library's: `nvtx_main alone`, `nvtx_main chained`
 * under a tool too, or `nvtx_main injected`, where the object is not preloaded and so must stay out
 * of the way.
 */
#include <nvtx3/nvToolsExt.h>
#include <string.h>
#include <wchar.h>

#include "tests/preload/preloaded.h"

int part_push(const char *name);
int part_pop(void);

#define EXPECT(_condition)                                                                         \
    do {                                                                                           \
        if (!(_condition)) {                                                                       \
            fprintf(stderr, "nvtx_main.c:%d: not so: %s\n", __LINE__, #_condition);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static void ranges(int chained)
{
    struct engine_double *d = load_double();
    const int outer = nvtxRangePushA("outer");
    const int inner = part_push("moe_experts;tokens=1");

    EXPECT(outer == (chained ? 0 : NVTX_NO_PUSH_POP_TRACKING));
    EXPECT(inner == (chained ? 1 : NVTX_NO_PUSH_POP_TRACKING));
    EXPECT(part_pop() == (chained ? 1 : NVTX_NO_PUSH_POP_TRACKING));
    EXPECT(nvtxRangePop() == (chained ? 0 : NVTX_NO_PUSH_POP_TRACKING));
    EXPECT(strcmp(d->log, "push outer;push moe_experts;tokens=1;pop;pop;") == 0);
    d->log[0] = '\0';

    nvtxEventAttributes_t event = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};
    nvtxDomainHandle_t domain = nvtxDomainCreateA("d");
    nvtxStringHandle_t experts = nvtxDomainRegisterStringA(domain, "layer.experts");
    nvtxStringHandle_t other = nvtxDomainRegisterStringW(domain, L"m\u00f6e");

    EXPECT(experts != NULL && other != NULL && experts != other);
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = experts;
    nvtxDomainRangePushEx(domain, &event);
    event.message.registered = other;
    nvtxDomainRangePushEx(domain, &event);
    nvtxDomainRangePop(domain);
    nvtxDomainRangePop(domain);
    EXPECT(strcmp(d->log, "push layer.experts;push m\xc3\xb6"
                          "e;pop;pop;") == 0);
    d->log[0] = '\0';

    event.messageType = NVTX_MESSAGE_TYPE_UNICODE;
    event.message.unicode = L"wide";
    nvtxRangePushEx(&event);
    nvtxRangePushW(L"also");
    event.size = 8; /* without a message */
    nvtxRangePushEx(&event);
    nvtxRangePushEx(NULL);
    EXPECT(strcmp(d->log, "push wide;push also;push ;push ;") == 0);
    EXPECT(d->depth == 4);
    d->log[0] = '\0';

    /* A field that does not fit is left out whole. */
    static const wchar_t fields[] = L";tokens=0x10;capacity=12345678";
    wchar_t wide[300];
    char log[300];

    wmemset(wide, L'x', 230);
    wcscpy(wide + 230, fields);
    nvtxRangePushW(wide);
    memset(log, 'x', 235);
    memcpy(log, "push ", 5);
    snprintf(log + 235, sizeof(log) - 235, ";tokens=0x10;");
    EXPECT(strcmp(d->log, log) == 0);
}

static void injected(void)
{
    void *object = need(dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_NOW), "object");
    struct engine_double *(*get)(void) = need(dlsym(object, "engine_double"), "engine_double");

    EXPECT(nvtxRangePushA("x") == NVTX_NO_PUSH_POP_TRACKING);
    EXPECT(get()->n_pushes == 0);
    EXPECT(getenv("PYTORCH_ALLOC_CONF") == NULL);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "injected") == 0) {
        injected();
        return 0;
    }
    ranges(argc == 2 && strcmp(argv[1], "chained") == 0);
    if (argc == 2 && strcmp(argv[1], "chained") == 0) {
        void *tool = need(dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_NOW), "tool");
        int (*count)(void) = need(dlsym(tool, "nvtx_tool_count"), "nvtx_tool_count");

        EXPECT(count() == 5);
    }
    return 0;
}
