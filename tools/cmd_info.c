/* SPDX-License-Identifier: Apache-2.0 */
/* `pagedstash info`: what a bug report needs about this build. */
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <sys/utsname.h>

#include <cuda.h>

#include "tools/cmd.h"
#include "tools/library.h"

static void print_info(void)
{
    char path[PATH_MAX];
    struct utsname names;

    puts("version: " PS_VERSION);
    printf("library: %s\n", ps_library_find(path, sizeof(path)) ? path : "not found");
    puts("compiler: " PS_COMPILER);
    puts("build type: " PS_BUILDTYPE);
    printf("CUDA built with: %d.%d\n", CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
    if (uname(&names) == 0) {
        printf("system: %s %s %s\n", names.sysname, names.release, names.machine);
    }
}

int cmd_info(int argc, char **argv)
{
    static const struct option flags[] = {{"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    const int code = getopt_long(argc, argv, "+h", flags, NULL);

    if (code == 'h') {
        puts(
            "Usage: pagedstash info\n\n"
            "Prints version and build, for bug reports. What the machine offers: pagedstash doctor.\n\n"
            "Example:\n  pagedstash info");
        return 0;
    }
    if (code != -1 || optind < argc) {
        fputs("pagedstash info: takes no arguments\n", stderr);
        return PS_EXIT_USAGE;
    }
    print_info();
    return 0;
}
