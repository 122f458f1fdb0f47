"$P" run --cuda-budget=8G --buffer-size-factor-cuda=1.2 -- echo not reached
