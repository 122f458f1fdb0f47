#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gen_fake.py INCLUDE OUTPUT: one function a symbol of the driver, and the table that says which look-up gives which."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import cuda_names  # noqa: E402

# fake_cuda.c writes these by hand.
BY_HAND = {"cuGetProcAddress", "cuGetProcAddress_v2", "cuDriverGetVersion"}


def main():
    functions = cuda_names.read(sys.argv[1])
    symbols = sorted({f.symbol for f in functions})
    names = {f.name for f in functions}
    # Functions without a typedef, and what nobody's table knows yet.
    symbols += sorted(n for n in cuda_names.declared(sys.argv[1]) if n not in symbols and n not in names)
    symbols += ["cuLaunchFromTheFuture", "cuLaunchKernel_v9", "cuMemcpyAsync_v9", "cuEventCreate_v9"]
    out = ["/* Made by gen_fake.py. */", '#include "tests/preload/fake_cuda.h"', ""]
    for i, symbol in enumerate(symbols):
        if symbol not in BY_HAND:
            out.append(f"FAKE({i}, {symbol})")
    out.append("const char *const fake_symbols[] = {")
    out += [f'    "{s}",' for s in symbols]
    out += ["};", f"const unsigned fake_n_symbols = {len(symbols)};", f"unsigned fake_counts[{len(symbols)}];"]
    out.append("const struct fake_function fake_functions[] = {")
    for f in functions:
        out.append(f'    {{"{f.name}", {f.version}, {int(f.variant != "legacy")}, {symbols.index(f.symbol)}}},')
    out += ["};", f"const unsigned fake_n_functions = {len(functions)};"]
    out.append("void *const fake_pointers[] = {")
    out += [f"    (void *){s}," for s in symbols]
    out += ["};", ""]
    Path(sys.argv[2]).write_text("\n".join(out))


if __name__ == "__main__":
    main()
