# shim/params.c: addresses in structures are looked for at steps of eight bytes only
s/high + 4 <= end; high += 4)/high + 4 <= end; high += 8)/
