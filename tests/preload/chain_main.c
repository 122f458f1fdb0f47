/* SPDX-License-Identifier: Apache-2.0 */
/* Two wrappers of one function, built without and with optimisation, on top of each other. */
#include <stdio.h>

int chained(void);
int anchor_0(void);
int anchor_2(void);
int anchor_end(void);

int main(void)
{
    const int sum = chained() + anchor_0() + anchor_2() + anchor_end();

    printf("%d\n", sum);
    return sum == 102 ? 0 : 1;
}
