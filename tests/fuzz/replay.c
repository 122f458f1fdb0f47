/* SPDX-License-Identifier: Apache-2.0 */
/* main() in libFuzzer's place: replay TARGET's inputs (files, or all files of folders), in the order of their names. */
#include <dirent.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"

static unsigned n_inputs;

static void run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    static uint8_t data[1 << 20];

    if (f == NULL) {
        perror(path);
        exit(2);
    }
    const size_t n = fread(data, 1, sizeof(data), f);

    fclose(f);
    /* A copy of just its size, so that a read behind the end is seen. */
    uint8_t *copy = malloc(n == 0 ? 1 : n);

    if (copy == NULL) {
        abort();
    }
    memcpy(copy, data, n);
    fprintf(stderr, "%s\n", path);
    (void)LLVMFuzzerTestOneInput(copy, n);
    free(copy);
    n_inputs++;
}

static void run_path(const char *path)
{
    struct stat st;
    struct dirent **entries;

    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        run_file(path);
        return;
    }
    const int n = scandir(path, &entries, NULL, alphasort);

    for (int i = 0; i < n; i++) {
        char file[4096];

        if (entries[i]->d_name[0] != '.') {
            snprintf(file, sizeof(file), "%s/%s", path, entries[i]->d_name);
            run_file(file);
        }
        free(entries[i]);
    }
    free(entries);
}

int main(int argc, char **argv)
{
    (void)LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        run_path(argv[i]);
    }
    fprintf(stderr, "%u inputs\n", n_inputs);
    return n_inputs > 0 ? 0 : 2;
}
