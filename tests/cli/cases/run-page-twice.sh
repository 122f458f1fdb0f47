"$P" run --page-bytes=1M --page-size=64 -- echo not reached
