/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wrappers and exports, one of each a row of hooks.def. Any thread of the job; no state but the
 * nesting depth. Each is exported by an alias, so that the look-up table holds our own function
 * even where another tool preloaded before us defines the same symbol. The compiler checks every
 * row twice: against cuda.h and against cudaTypedefs.h.
 */
#include "shim/hooks.h"
#include "shim/params.h"
#include "shim/tape.h"

__thread unsigned ps_hook_depth __attribute__((tls_model("initial-exec")));

#define PS_UNPAREN(...) __VA_ARGS__

#define PS_PTDS_legacy false
#define PS_PTDS_ptds   true
#define PS_PTDS_ptsz   true

#define PS_PFN_legacy(_name, _version)    PFN_##_name##_v##_version
#define PS_PFN_ptds(_name, _version)      PFN_##_name##_v##_version##_ptds
#define PS_PFN_ptsz(_name, _version)      PFN_##_name##_v##_version##_ptsz
#define PS_PFN(_name, _version, _variant) PS_PFN_##_variant(_name, _version)

/*
 * The column `stream`. Peer copies are serialised with the current context too, so its default
 * stream will do.
 */
#define ON(_stream)   ps_stream_resolve(_stream, ptds)
#define DEFAULT       ps_stream_resolve(NULL, ptds)
#define BOTH_CONTEXTS ps_stream_resolve(NULL, ptds)
#define MANY          CU_STREAM_LEGACY
#define NONE          CU_STREAM_LEGACY

/* The column `statements`. */
#define T     (&touch)
#define P     (&pin)
#define RETRY (void)0
#define REFUSE(_ptr)                                                                               \
    if (ps_hook_owned(_ptr)) {                                                                     \
        r = CUDA_ERROR_INVALID_VALUE;                                                              \
        goto out;                                                                                  \
    }
#define REFUSE_ANY(_ptrs, _count)                                                                  \
    if (ps_hook_owned_any(_ptrs, _count)) {                                                        \
        r = CUDA_ERROR_INVALID_VALUE;                                                              \
        goto out;                                                                                  \
    }

/* The column `danger`: rows that only a tape wants go straight on while none is written. */
#define PS_NOW_TOUCHES(_symbol, _type, _args)
#define PS_NOW_SAFE(_symbol, _type, _args)
#define PS_NOW_ORDERS(_symbol, _type, _args)                                                       \
    if (!ps_tape_on()) {                                                                           \
        void *const next =                                                                         \
            atomic_load_explicit(&ps_hook_next[PS_HOOK_##_symbol], memory_order_relaxed);          \
        if (next != NULL) {                                                                        \
            return ((_type)next)_args;                                                             \
        }                                                                                          \
    }

#define PS_ARGUMENTS(...) __VA_OPT__(, ) __VA_ARGS__

#define PS_ENTER(_symbol, _name, _version, _variant, _args)                                        \
    bool straight;                                                                                 \
    const PS_PFN(_name, _version, _variant) real =                                                 \
        (PS_PFN(_name, _version, _variant))ps_hook_enter(PS_HOOK_##_symbol,                        \
                                                         __builtin_return_address(0), &straight);  \
    if (real == NULL) {                                                                            \
        return ps_hook_no_driver();                                                                \
    }                                                                                              \
    if (straight) {                                                                                \
        return real _args;                                                                         \
    }

#define PS_EXPORT(_symbol, _name, _version, _variant)                                              \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&ps_wrap_##_symbol),                    \
                                                PS_PFN(_name, _version, _variant)),                \
                   #_symbol " is not what cudaTypedefs.h says");                                   \
    extern __typeof__(ps_wrap_##_symbol) _symbol                                                   \
        __attribute__((alias("ps_wrap_" #_symbol), visibility("default")));

#define HOOK(_symbol, _name, _version, _variant, _danger, _stream, _params, _args, _statements)    \
    CUresult ps_wrap_##_symbol _params;                                                            \
    CUresult ps_wrap_##_symbol _params                                                             \
    {                                                                                              \
        PS_NOW_##_danger(_symbol, PS_PFN(_name, _version, _variant), _args)                        \
            PS_ENTER(_symbol, _name, _version, _variant, _args) const bool ptds                    \
            __attribute__((unused)) = PS_PTDS_##_variant;                                          \
        const CUstream stream_ = _stream;                                                          \
        struct ps_touches touch;                                                                   \
        struct ps_touches pin;                                                                     \
        CUresult r;                                                                                \
                                                                                                   \
        ps_touches_init(&touch);                                                                   \
        ps_touches_init(&pin);                                                                     \
        _statements;                                                                               \
        r = ps_hook_begin(&touch, &pin, stream_);                                                  \
        if (r != CUDA_SUCCESS) {                                                                   \
            goto out;                                                                              \
        }                                                                                          \
        if (ps_tape_on()) {                                                                        \
            ps_tape_before(PS_HOOK_##_symbol, stream_ PS_ARGUMENTS _args);                         \
        }                                                                                          \
        r = real _args;                                                                            \
        if (ps_hook_again(r)) {                                                                    \
            r = real _args;                                                                        \
        }                                                                                          \
        ps_hook_end(&touch, stream_);                                                              \
        if (ps_tape_on()) {                                                                        \
            ps_tape_after(PS_HOOK_##_symbol, r, stream_ PS_ARGUMENTS _args);                       \
        }                                                                                          \
    out:                                                                                           \
        ps_hook_leave();                                                                           \
        return r;                                                                                  \
    }                                                                                              \
    PS_EXPORT(_symbol, _name, _version, _variant)

#define HOOK_BODY(_symbol, _name, _version, _variant, _danger, _stream, _params, _args, _function) \
    CUresult ps_wrap_##_symbol _params;                                                            \
    CUresult ps_wrap_##_symbol _params                                                             \
    {                                                                                              \
        PS_ENTER(_symbol, _name, _version, _variant, _args)                                        \
        const bool ptds = PS_PTDS_##_variant;                                                      \
                                                                                                   \
        if (ps_tape_on()) {                                                                        \
            ps_tape_before(PS_HOOK_##_symbol, (_stream)PS_ARGUMENTS _args);                        \
        }                                                                                          \
        const CUresult r = _function(real, ptds, PS_UNPAREN _args);                                \
                                                                                                   \
        if (ps_tape_on()) {                                                                        \
            ps_tape_after(PS_HOOK_##_symbol, r, (_stream)PS_ARGUMENTS _args);                      \
        }                                                                                          \
        ps_hook_leave();                                                                           \
        return r;                                                                                  \
    }                                                                                              \
    PS_EXPORT(_symbol, _name, _version, _variant)

#include "shim/hooks.def"

#undef HOOK
#undef HOOK_BODY
