/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status of an internal operation. PS_OK is 0. Whoever detects a failure logs it once with the exact
 * cause; callers forward the status silently. Expected outcomes ("no room", "not ours") are bools or
 * enums of the function's own, never a status.
 */
#ifndef PS_BASE_STATUS_H
#define PS_BASE_STATUS_H

enum ps_status {
    PS_OK = 0,
    PS_ERR_MEMORY,      /* host memory */
    PS_ERR_DEVICE,      /* a driver call of ours failed */
    PS_ERR_INVALID,     /* outside input was malformed */
    PS_ERR_UNSUPPORTED, /* the driver or device lacks something */
    PS_ERR_SYSTEM,      /* a system call failed */
};

#define PS_MUST_CHECK __attribute__((warn_unused_result))

#endif
