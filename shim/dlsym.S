/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlsym, and the stubs for driver functions that we do not know.
 *
 * dlsym must leave by a jump: libc derives RTLD_NEXT from the return address, and a call in its place made sanitized
 * programs hang. RTLD_NEXT runs no C code but the one look-up of the next dlsym; for the rest ps_dlsym_decide
 * answers, or says to go on.
 *
 * It is exported under libc's own versions: tools find the next dlsym by dlvsym, which passes over a function without one.
 *
 * A stub keeps every register that can hold an argument, asks ps_stub_called where to go on, and jumps there.
 */
        .text

#if defined(__x86_64__)
#    define OLD_VERSION GLIBC_2.2.5
#else
#    define OLD_VERSION GLIBC_2.17
#endif

        .macro  DLSYM_VERSIONS
        .globl  ps_dlsym_hook
        .globl  ps_dlsym_hook_old
        .symver ps_dlsym_hook, dlsym@@GLIBC_2.34
        .symver ps_dlsym_hook_old, dlsym@OLD_VERSION
        .endm

#if defined(__x86_64__)

        DLSYM_VERSIONS
        .type   ps_dlsym_hook, @function
        .type   ps_dlsym_hook_old, @function
ps_dlsym_hook:
ps_dlsym_hook_old:
        .cfi_startproc
        endbr64
        cmpq    $-1, %rdi               /* RTLD_NEXT */
        je      .Lnext
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        movq    24(%rsp), %rdx          /* the caller */
        call    ps_dlsym_decide
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testq   %rdx, %rdx
        je      .Lnext
        ret
.Lnext:
        movq    ps_dlsym_next(%rip), %rax
        testq   %rax, %rax
        je      .Lfind
        jmp     *%rax
.Lfind:
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    ps_dlsym_find_next
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        jmp     *%rax
        .cfi_endproc
        .size   ps_dlsym_hook, .-ps_dlsym_hook
        .size   ps_dlsym_hook_old, .-ps_dlsym_hook_old

        .type   stub_common, @function
stub_common:                            /* index in %eax */
        .cfi_startproc
        pushq   %rbp
        .cfi_def_cfa_offset 16
        .cfi_offset %rbp, -16
        movq    %rsp, %rbp
        .cfi_def_cfa_register %rbp
        pushq   %rdi
        pushq   %rsi
        pushq   %rdx
        pushq   %rcx
        pushq   %r8
        pushq   %r9
        subq    $128, %rsp
        movups  %xmm0, (%rsp)
        movups  %xmm1, 16(%rsp)
        movups  %xmm2, 32(%rsp)
        movups  %xmm3, 48(%rsp)
        movups  %xmm4, 64(%rsp)
        movups  %xmm5, 80(%rsp)
        movups  %xmm6, 96(%rsp)
        movups  %xmm7, 112(%rsp)
        movl    %eax, %edi
        call    ps_stub_called
        movups  (%rsp), %xmm0
        movups  16(%rsp), %xmm1
        movups  32(%rsp), %xmm2
        movups  48(%rsp), %xmm3
        movups  64(%rsp), %xmm4
        movups  80(%rsp), %xmm5
        movups  96(%rsp), %xmm6
        movups  112(%rsp), %xmm7
        addq    $128, %rsp
        popq    %r9
        popq    %r8
        popq    %rcx
        popq    %rdx
        popq    %rsi
        popq    %rdi
        popq    %rbp
        .cfi_def_cfa %rsp, 8
        jmp     *%rax
        .cfi_endproc
        .size   stub_common, .-stub_common

        .globl  ps_stub_code
        .hidden ps_stub_code
        .type   ps_stub_code, @function
        .balign 16
ps_stub_code:                           /* 64 stubs of 16 bytes: PS_N_STUBS, PS_STUB_BYTES */
        .set    i, 0
        .rept   64
        .balign 16
        endbr64
        movl    $i, %eax
        jmp     stub_common
        .set    i, i + 1
        .endr
        .balign 16
        .size   ps_stub_code, .-ps_stub_code

#elif defined(__aarch64__)

        DLSYM_VERSIONS
        .type   ps_dlsym_hook, %function
        .type   ps_dlsym_hook_old, %function
ps_dlsym_hook:
ps_dlsym_hook_old:
        .cfi_startproc
        hint    #34                     /* bti c */
        cmn     x0, #1                  /* RTLD_NEXT */
        b.eq    .Lnext
        stp     x29, x30, [sp, #-32]!
        .cfi_def_cfa_offset 32
        .cfi_offset x29, -32
        .cfi_offset x30, -24
        mov     x29, sp
        stp     x0, x1, [sp, #16]
        mov     x2, x30                 /* the caller */
        bl      ps_dlsym_decide
        mov     x9, x0
        mov     x10, x1
        ldp     x0, x1, [sp, #16]
        ldp     x29, x30, [sp], #32
        .cfi_restore x29
        .cfi_restore x30
        .cfi_def_cfa_offset 0
        cbz     x10, .Lnext
        mov     x0, x9
        ret
.Lnext:
        adrp    x16, ps_dlsym_next
        ldr     x16, [x16, #:lo12:ps_dlsym_next]
        cbz     x16, .Lfind
        br      x16
.Lfind:
        stp     x29, x30, [sp, #-32]!
        .cfi_def_cfa_offset 32
        .cfi_offset x29, -32
        .cfi_offset x30, -24
        mov     x29, sp
        stp     x0, x1, [sp, #16]
        bl      ps_dlsym_find_next
        mov     x16, x0
        ldp     x0, x1, [sp, #16]
        ldp     x29, x30, [sp], #32
        .cfi_restore x29
        .cfi_restore x30
        .cfi_def_cfa_offset 0
        br      x16
        .cfi_endproc
        .size   ps_dlsym_hook, .-ps_dlsym_hook
        .size   ps_dlsym_hook_old, .-ps_dlsym_hook_old

        .type   stub_common, %function
stub_common:                            /* index in w16 */
        .cfi_startproc
        stp     x29, x30, [sp, #-224]!
        .cfi_def_cfa_offset 224
        .cfi_offset x29, -224
        .cfi_offset x30, -216
        mov     x29, sp
        stp     x0, x1, [sp, #16]
        stp     x2, x3, [sp, #32]
        stp     x4, x5, [sp, #48]
        stp     x6, x7, [sp, #64]
        str     x8, [sp, #80]
        stp     q0, q1, [sp, #96]
        stp     q2, q3, [sp, #128]
        stp     q4, q5, [sp, #160]
        stp     q6, q7, [sp, #192]
        mov     w0, w16
        bl      ps_stub_called
        mov     x16, x0
        ldp     x0, x1, [sp, #16]
        ldp     x2, x3, [sp, #32]
        ldp     x4, x5, [sp, #48]
        ldp     x6, x7, [sp, #64]
        ldr     x8, [sp, #80]
        ldp     q0, q1, [sp, #96]
        ldp     q2, q3, [sp, #128]
        ldp     q4, q5, [sp, #160]
        ldp     q6, q7, [sp, #192]
        ldp     x29, x30, [sp], #224
        .cfi_restore x29
        .cfi_restore x30
        .cfi_def_cfa_offset 0
        br      x16
        .cfi_endproc
        .size   stub_common, .-stub_common

        .globl  ps_stub_code
        .hidden ps_stub_code
        .type   ps_stub_code, %function
        .balign 16
ps_stub_code:                           /* 64 stubs of 16 bytes: PS_N_STUBS, PS_STUB_BYTES */
        .set    i, 0
        .rept   64
        .balign 16
        hint    #34
        mov     w16, #i
        b       stub_common
        .set    i, i + 1
        .endr
        .balign 16
        .size   ps_stub_code, .-ps_stub_code

#else
#    error "no dlsym for this processor"
#endif

        .section .note.GNU-stack, "", %progbits
