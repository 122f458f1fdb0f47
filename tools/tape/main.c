/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pagedstash-tape: reads a tape, plays it on whatever libcuda is found, and prints one JSON object:
 * what the recorder counted, what was read, what was played, and a hash of all data that was read.
 * One thread; the players are play.c's.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "policy/base/json.h"
#include "tools/tape/device.h"
#include "tools/tape/tape.h"

#define EXIT_USAGE     2
#define MIN_BYTES_LEFT 8192 /* smaller tensors could not be told from what keeps its size */

static const char *const count_names[PS_TAPE_N_COUNTS] = {
    [PS_TAPE_N_ALLOCS] = "allocs",
    [PS_TAPE_N_FREES] = "frees",
    [PS_TAPE_N_LAUNCHES] = "launches",
    [PS_TAPE_N_COPIES] = "copies",
    [PS_TAPE_N_FILLS] = "fills",
    [PS_TAPE_N_TENSORS] = "tensors",
    [PS_TAPE_N_TENSOR_FREES] = "tensor_frees",
    [PS_TAPE_N_TOUCHES] = "touches",
    [PS_TAPE_N_STALE_TOUCHES] = "stale_touches",
};

struct settings {
    uint64_t scale;
    unsigned padding;
    bool check_only;
    bool records;
    const char *path;
};

static void print_help(void)
{
    puts(
        "usage: pagedstash-tape [options] FILE\n\n"
        "Plays a tape (PAGEDSTASH_TAPE) by the CUDA driver API and prints one JSON object.\n\n"
        "  --scale=N   sizes are divided by N (1)\n"
        "  --padding=P percent of each tensor that no launch writes (50)\n"
        "  --check     read the tape only; no driver\n"
        "  --records   print the records, one a line, numbers in hexadecimal; no driver\n"
        "  --help      print this and exit\n\n"
        "Exit status: 0; 1 when the tape is malformed, cut, or not played as recorded; 77 without\n"
        "a device.");
}

static int usage(const char *what, const char *of)
{
    fprintf(stderr, "pagedstash-tape: %s '%s'; see pagedstash-tape --help\n", what, of);
    return EXIT_USAGE;
}

/* -1: go on. */
static int parse(int argc, char **argv, struct settings *s)
{
    static const struct option flags[] = {
        {"scale", required_argument, NULL, 's'}, {"padding", required_argument, NULL, 'p'},
        {"check", no_argument, NULL, 'c'},       {"records", no_argument, NULL, 'r'},
        {"help", no_argument, NULL, 'h'},        {NULL, 0, NULL, 0},
    };
    int code;

    while ((code = getopt_long(argc, argv, "", flags, NULL)) != -1) {
        char *end = NULL;

        switch (code) {
        case 's':
            errno = 0;
            s->scale = strtoull(optarg, &end, 10);
            if (errno != 0 || *end != '\0' || s->scale < 1 || s->scale > 1u << 20) {
                return usage("bad scale", optarg);
            }
            break;
        case 'p':
            s->padding = (unsigned)strtoul(optarg, &end, 10);
            if (*end != '\0' || *optarg == '\0' || s->padding > 100) {
                return usage("bad padding", optarg);
            }
            break;
        case 'c':
            s->check_only = true;
            break;
        case 'r':
            s->records = true;
            break;
        case 'h':
            print_help();
            return 0;
        default:
            return EXIT_USAGE;
        }
    }
    if (optind + 1 != argc) {
        return usage("want one file, not", optind < argc ? argv[optind + 1] : "");
    }
    s->path = argv[optind];
    return -1;
}

static uint8_t *read_file(const char *path, size_t *size_p)
{
    FILE *f = fopen(path, "rbe");
    uint8_t *data = NULL;
    size_t size = 0, room = 0;

    while (f != NULL) {
        if (size == room) {
            void *more = realloc(data, room == 0 ? (size_t)1 << 20 : 2 * room);

            if (more == NULL) {
                break;
            }
            data = more;
            room = room == 0 ? (size_t)1 << 20 : 2 * room;
        }
        const size_t n = fread(data + size, 1, room - size, f);

        size += n;
        if (n == 0) {
            break;
        }
    }
    if (f == NULL || ferror(f) || !feof(f)) {
        fprintf(stderr, "pagedstash-tape: cannot read '%s': %s\n", path, strerror(errno));
        free(data);
        data = NULL;
    }
    if (f != NULL) {
        fclose(f);
    }
    *size_p = size;
    return data;
}

static void print_counts(struct ps_json *j, const char *key, const uint64_t *counts)
{
    ps_json_open(j, key, '{');
    for (unsigned i = 0; i < PS_TAPE_N_COUNTS; i++) {
        ps_json_u64(j, count_names[i], counts[i]);
    }
    ps_json_close(j, '}');
}

static void print(const struct tape *t, const struct tape_played *played)
{
    char buf[4096];
    char hash[17];
    struct ps_json j;

    fflush(stdout);
    ps_json_init(&j, buf, sizeof(buf), STDOUT_FILENO);
    ps_json_open(&j, NULL, '{');
    ps_json_u64(&j, "version", PS_TAPE_VERSION);
    ps_json_string(&j, "regions", t->head.regions);
    ps_json_u64(&j, "min_bytes", t->head.min_bytes / t->scale);
    ps_json_u64(&j, "records", t->n_events);
    ps_json_u64(&j, "threads", t->n_threads);
    ps_json_u64(&j, "streams", t->n_streams);
    ps_json_bool(&j, "whole", t->ended && !t->cut);
    ps_json_u64(&j, "left_out", t->n_left_out);
    ps_json_u64(&j, "unordered", t->n_races);
    if (t->ended) {
        print_counts(&j, "recorded", t->told);
    }
    print_counts(&j, "read", t->counts);
    if (played != NULL) {
        ps_json_open(&j, "played", '{');
        ps_json_u64(&j, "tensor_frees", played->n_tensor_frees);
        ps_json_u64(&j, "touches", played->n_touches);
        ps_json_u64(&j, "stale_touches", played->n_stale_touches);
        snprintf(hash, sizeof(hash), "%016" PRIx64, played->hash);
        ps_json_string(&j, "hash", hash);
        ps_json_close(&j, '}');
    }
    ps_json_close(&j, '}');
    ps_json_finish(&j);
}

static bool as_recorded(const struct tape *t, const struct tape_played *played)
{
    bool ok = t->ended;

    if (!t->ended) {
        fprintf(stderr, "pagedstash-tape: the tape is cut: the job was killed\n");
    }
    for (unsigned i = 0; t->ended && i < PS_TAPE_N_COUNTS; i++) {
        if (t->told[i] != t->counts[i]) {
            fprintf(stderr, "pagedstash-tape: %s: %" PRIu64 " were read, %" PRIu64 " recorded\n",
                    count_names[i], t->counts[i], t->told[i]);
            ok = false;
        }
    }
    if (played != NULL && (played->n_touches != t->counts[PS_TAPE_N_TOUCHES] ||
                           played->n_stale_touches != t->counts[PS_TAPE_N_STALE_TOUCHES] ||
                           played->n_tensor_frees != t->counts[PS_TAPE_N_TENSOR_FREES])) {
        fprintf(stderr, "pagedstash-tape: what was played is not what was read\n");
        ok = false;
    }
    return ok;
}

/* The bytes of a record: text where it is one. */
static void print_bytes(const struct ps_tape_record *r)
{
    if (r->kind == PS_TAPE_STRING) {
        printf(" %.*s", (int)r->n_bytes, (const char *)r->bytes);
        return;
    }
    if (r->n_bytes != 0) {
        printf(" + ");
    }
    for (size_t i = 0; i < r->n_bytes; i++) {
        printf("%02x", r->bytes[i]);
    }
}

static int print_records(const char *path, const uint8_t *data, size_t size)
{
    struct ps_tape_reader reader;
    struct ps_tape_record r;
    struct ps_tape_head head;

    if (ps_tape_open(&reader, data, size, &head)) {
        while (ps_tape_next(&reader, &r)) {
            printf("%" PRIx32 " %" PRIx64 " %s", r.thread, r.time, ps_tape_kind_name(r.kind));
            for (int i = 0; i < ps_tape_n_fields(r.kind); i++) {
                printf(" %" PRIx64, r.field[i]);
            }
            print_bytes(&r);
            putchar('\n');
        }
    }
    if (reader.error != NULL || reader.cut) {
        fprintf(stderr, "pagedstash-tape: '%s': %s at byte %zu\n", path,
                reader.error != NULL ? reader.error : "the last record is not whole", reader.at);
        return 1;
    }
    return 0;
}

static int play(const struct settings *s, struct tape *t)
{
    struct tape_played played;

    if (s->check_only) {
        print(t, NULL);
        return as_recorded(t, NULL) ? 0 : 1;
    }
    if (s->scale > 1 && t->head.min_bytes / s->scale < MIN_BYTES_LEFT) {
        return usage("too large a scale for the tape's smallest tensor in", s->path);
    }
    if (!tape_order(t)) {
        fprintf(stderr, "pagedstash-tape: out of memory\n");
        return 1;
    }
    if (!tape_play(t, s->padding, &played)) {
        return 1;
    }
    print(t, &played);
    return as_recorded(t, &played) ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct settings s = {.scale = 1, .padding = 50};
    struct tape t;
    size_t size;
    int status = parse(argc, argv, &s);

    if (status >= 0) {
        return status;
    }
    uint8_t *data = read_file(s.path, &size);

    if (data == NULL) {
        return 1;
    }
    memset(&t, 0, sizeof(t));
    if (s.records) {
        status = print_records(s.path, data, size);
    } else if (tape_load(&t, data, size, s.scale)) {
        status = play(&s, &t);
    } else {
        fprintf(stderr, "pagedstash-tape: '%s': %s\n", s.path, t.error);
        status = 1;
    }
    tape_fini(&t);
    free(data);
    return status;
}
