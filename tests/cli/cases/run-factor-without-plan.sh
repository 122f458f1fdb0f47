"$P" run --plan=n --buffer-size-factor-cuda=-1 -- echo not reached
