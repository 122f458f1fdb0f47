/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that cannot both be meant; see ps_options_contradictions in options.h. For options.c only. No state. */
#ifndef PS_BASE_CONTRADICTIONS_H
#define PS_BASE_CONTRADICTIONS_H

#include "policy/base/options.h"

/*
 * Goes through the rules from *rule_p on. Where both settings of one were found in the same place, the second is set
 * back to its default, and what is to be said stands in buf: true, and *rule_p is the next rule. Where one was found in
 * an earlier place than the other, it is set back and nothing is said. False: there are no more.
 */
bool ps_contradiction_next(struct ps_options *o, unsigned *rule_p, char *buf, size_t size);

#endif
