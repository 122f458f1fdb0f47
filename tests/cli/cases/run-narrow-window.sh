"$P" run --window-bytes=1M -- echo not reached
