/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data shared by the stash kernels, the shim and the unit tests: plain C, no CUDA header.
 *
 * Pages: one pool of equal pages (a power of two from 512 B), of which one part is device memory at
 * consecutive addresses and the other pinned host memory in pieces of equal size. The page grid of a tensor starts at
 * the item's base; the last page may be short. A page whose 16-byte words are all equal is "uniform": its
 * word goes into the page table and no pool page is taken.
 *
 * Free lists, one for each part: a ring of page numbers with monotonic 64-bit counters, in device memory,
 * moved by kernels only:
 *   - head: pages taken so far, moved by stash kernels. All stash launches of a pool run on one stream.
 *   - tail: pages given so far, moved by drop and grow kernels, which are totally ordered by
 *     events: slots are written and fenced, then tail is published by the last thread.
 *   - n_free: what is added to it has been published; a stash subtracts before it takes.
 *   - tail - head = n_free = pages free between launches; equals the capacity when nothing is out.
 * The ring has n_slots = a power of two, at least 4, >= the largest capacity the pool can ever have.
 *
 * Where there are host pages, a page to be stored takes a device page if one is free at that moment: whoever
 * subtracts from n_free and found more than nothing has one, and sees what those who gave it did; whoever found
 * nothing adds again and takes a host page. So it never fails while a page is left that was free when the launch began,
 * and the pages of both parts that the host knows to be free (policy/budget.h) are enough whatever is given meanwhile.
 *
 * Without host pages a stash asks nothing: the host knows that as many pages are free as the batch has, so page i of
 * the batch has the i-th free page at hand from the start. The numbers of those that were not needed gather behind the
 * ring; the last block to end puts them behind those that were, and moves the head: slots from the head on up to the
 * number of the batch's pages are the running stash's own.
 *
 * Counted rows: where `rows` of an item is set, a number in device memory says how many rows of the tensor hold data;
 * they lie at its front. Trusted, pages wholly beyond them are "dead": neither read nor stored nor brought back. Not
 * trusted, everything is scanned as ever, and the ledger word tells whether the job has written anything beyond the
 * rows. It has not if that is uniform, and another word after another fill: then it comes of what nobody wrote.
 */
#ifndef PS_KERNELS_LAYOUT_H
#define PS_KERNELS_LAYOUT_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define PS_BATCH_MAX      48 /* tensors in one launch: the batch is a by-value parameter */
#define PS_PAGE_UNIFORM   UINT32_MAX
#define PS_PAGE_DEAD      (UINT32_MAX - 1) /* beyond the rows there are: what it holds is no matter */
#define PS_PAGE_HOST      0x80000000u      /* bit of the number of a page in host memory */
#define PS_PAGE_BYTES_MIN 512
#define PS_PARTS_MAX                                                                               \
    32 /* units of a page; a stash that looks for host pages or beyond rows has one */
#define PS_CHUNKS_MAX 16
#define PS_RING_MAX                                                                                \
    (40u << 10) /* what any device gives a block unasked, 48 KiB, less what is static */
#define PS_PAGES_MAX 0xffffff /* of one tensor: a ledger counts in 24 bits */

struct ps_page_entry {
    uint32_t page; /* page number in the pool, PS_PAGE_UNIFORM or PS_PAGE_DEAD */
    uint32_t pad;
    uint64_t
        state; /* what has become of the page's units; 0 between stashes, and before the first */
    uint64_t word[2]; /* the 16 bytes a uniform page is made of */
};

struct ps_free_list {
    uint64_t head;   /* pages taken so far */
    uint64_t tail;   /* pages given so far */
    uint64_t n_free; /* signed: below 0 for moments */
    uint64_t n_slots;
    /* In the device pages' list: blocks of the running stash that have finished << 32 | pages they stored; else 0. */
    uint64_t done;
    uint32_t *slots; /* uint32_t[2 * n_slots] in device memory; the ring is the first half */
    /* Of the running stash: page numbers that it has put into the second half, from its start on. Else 0. */
    uint64_t n_spare;
};

/* What one stash of one tensor stored: one aligned 64-bit word, so that it is read whole. */
#define PS_LEDGER(_seq, _device, _host)                                                            \
    ((uint64_t)((_seq)&PS_SEQ_MAX) << 48 | (uint64_t)(_device) << 24 | (uint64_t)(_host))
#define PS_LEDGER_BEYOND     (UINT64_C(1) << 63) /* or'ed: something lies beyond the counted rows */
#define PS_LEDGER_SEQ(_w)    ((uint16_t)((_w) >> 48 & PS_SEQ_MAX))
#define PS_LEDGER_DEVICE(_w) ((uint32_t)((_w) >> 24 & 0xffffff)) /* pages stored in device memory */
#define PS_LEDGER_HOST(_w)   ((uint32_t)((_w)&0xffffff))         /* and in host memory */
#define PS_SEQ_MAX           0x7fff

/* Two fills of memory: zeros, and what is about one as a float of any width; 32 bits, as a driver fills. */
#define PS_ROWS_FILL(_which) ((_which) != 0 ? UINT32_C(0x3f803f80) : UINT32_C(0))
#define PS_ROWS_POISON       UINT32_C(0xffffffff) /* not a number as a float of any width */

/* What lay beyond the rows of a site's tensors last, by the fill that they were handed out with. */
struct ps_row_outcome {
    uint64_t word[2][2];
    uint64_t seen[2];
    uint64_t pad[2];
};

/* Of a batch item. */
#define PS_ROWS_I32     1u /* the count is an int32_t, else an int64_t */
#define PS_ROWS_TRUSTED 2u
#define PS_ROWS_OVERWRITE                                                                          \
    4u /* a restore fills what is beyond the rows with PS_ROWS_POISON; trusted only */
#define PS_ROWS_SECOND 8u /* not trusted: handed out with PS_ROWS_FILL(1) */
/* The flags are right when a restore begins: it need not write zeros to pages that are flagged 0. */
#define PS_ITEM_KNOWN 16u
/*
 * A restore reads what lies where a uniform page belongs, and writes only what differs: for memory that is read faster
 * than written while it holds zeros.
 */
#define PS_ITEM_COMPARE 32u

/*
 * One tensor of a batch, or a part of one. Addresses are device addresses. counts, ledger and seq are for stash only;
 * clean takes data, bytes and flags alone, and nothing of the batch but page_bytes. What is said of rows is for stash,
 * and for a restore that overwrites.
 * No two items of a batch share any memory that it writes.
 */
struct ps_batch_item {
    uint64_t data;  /* where the page grid starts; 16-byte aligned */
    uint64_t bytes; /* rounded up to 16 */
    uint64_t table; /* struct ps_page_entry[ceil(bytes / page_bytes)] */
    /*
     * uint64_t[2] in device memory, 0 between stashes: pages done << 32 | pages stored there, and pages stored on the
     * host, above which findings beyond the rows are counted.
     */
    uint64_t counts;
    uint64_t ledger; /* uint64_t in pinned host memory, written when all pages are done */
    /*
     * One byte a page of the memory behind `data`, in device memory; 0: none. 0: the page is all zero; else it may
     * hold something. Of a short last page only the part within `bytes` is spoken for.
     */
    uint64_t flags;
    uint64_t rows;       /* address of the count, aligned to its size; 0: not counted */
    uint64_t before;     /* bytes of the tensor in front of `data` */
    uint32_t rows_max;   /* a count beyond is taken for this, one below 0 for 0 */
    uint32_t unit_bytes; /* of 2^unit_shift rows, the last unit being whole too */
    uint16_t seq; /* tells this stash's ledger word from an earlier one's; up to PS_SEQ_MAX */
    uint8_t unit_shift;
    uint8_t rows_kind; /* PS_ROWS_*, PS_ITEM_* */
    uint32_t outcome;  /* not trusted: number of its site's; no other item of the batch has it */
};

/* Of a launch, which kernels.c fills in. */
struct ps_ring {
    uint8_t chunk_shift; /* log2 of what is loaded at once: at most a unit */
    uint8_t n_slots;     /* chunks that a block has in flight: 2 to PS_CHUNKS_MAX */
};

struct ps_batch {
    uint64_t pool;        /* base address of the device pages */
    uint64_t host_pieces; /* uint64_t[] in device memory: addresses of the pieces of host pages */
    uint64_t free_list;   /* struct ps_free_list of device pages */
    uint64_t host_list;   /* of host pages; 0: there are none */
    uint64_t outcomes;    /* struct ps_row_outcome[] in device memory; 0: all rows are trusted */
    uint32_t page_bytes;
    uint32_t n_items;
    uint32_t host_shift; /* log2 of the pages of a piece */
    /* Of a launch of stash or restore, which kernels.c fills in: units are what a block moves at a time. */
    uint8_t unit_shift; /* log2 of a unit's bytes: a page, or down to 1/PS_PARTS_MAX of one */
    uint8_t pad;
    struct ps_ring ring;
    uint32_t n_pages;
    uint32_t first_page[PS_BATCH_MAX]; /* pages of the items before; close to what is read first */
    uint32_t pad2;
    struct ps_batch_item items[PS_BATCH_MAX];
};

static inline uint64_t ps_batch_item_pages(const struct ps_batch *b,
                                           const struct ps_batch_item *item)
{
    return (item->bytes + b->page_bytes - 1) / b->page_bytes;
}

#ifdef __CUDACC__
#    define PS_BOTH static __host__ __device__ __forceinline__
#else
#    define PS_BOTH static inline
#endif

/* Bytes from the item's data on that may hold rows, when n are counted. */
PS_BOTH uint64_t ps_batch_item_valid(const struct ps_batch_item *item, int64_t n)
{
    const uint64_t rows = n < 0 ? 0 : (uint64_t)n < item->rows_max ? (uint64_t)n : item->rows_max;
    const uint64_t units = (rows + (UINT64_C(1) << item->unit_shift) - 1) >> item->unit_shift;
    const uint64_t bytes = units * item->unit_bytes;

    if (bytes <= item->before) {
        return 0;
    }
    return bytes - item->before < item->bytes ? bytes - item->before : item->bytes;
}

/*
 * Copies pages one behind the other, of which only the device knows how many: from `first` on up to the number that is
 * in `count` when the kernel runs, n_pages at most. One side is pinned host memory.
 */
struct ps_shift {
    uint64_t to, from; /* addresses of page 0; 16-byte aligned */
    uint64_t count;    /* device address of a uint64_t */
    uint64_t note;     /* where the number is written to as well, in device memory; 0: nowhere */
    /* Not 0: the number is this list's head, as pages are taken in order from 0; all n_pages are free again after. */
    uint64_t list;
    uint32_t first, n_pages;
    uint32_t page_bytes;
    uint8_t to_host; /* else from there */
    uint8_t pad;
    struct ps_ring ring;
};

/* Both compilers must lay these out alike, and older drivers take 4 KiB of parameters at most. */
static_assert(sizeof(struct ps_page_entry) == 32, "page entries are 32 bytes");
static_assert(offsetof(struct ps_page_entry, state) == 8 &&
                  offsetof(struct ps_page_entry, word) == 16,
              "the word is aligned like a vector");
static_assert(sizeof(struct ps_free_list) == 56, "seven words");
static_assert(sizeof(struct ps_row_outcome) == 64, "no padding");
static_assert(sizeof(struct ps_batch_item) == 80, "no padding");
static_assert(offsetof(struct ps_batch, items) == 256, "no padding");
static_assert(sizeof(struct ps_shift) == 56, "no padding");
static_assert(sizeof(struct ps_batch) <= 4096, "a batch is one kernel parameter");

#endif
