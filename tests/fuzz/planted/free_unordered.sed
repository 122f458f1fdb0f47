# shim/memory.c: freed memory is used again without regard to what it was freed behind
s/if (f != NULL && f->stream_key != stream_key && !ps_fence_done(f)) {/if (false \&\& f != NULL \&\& stream_key != 0) {/
