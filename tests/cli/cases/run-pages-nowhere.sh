RANK=3 "$P" run --buffer-size-factor-cuda=0 --buffer-size-factor-cpu=0 -- echo not reached
