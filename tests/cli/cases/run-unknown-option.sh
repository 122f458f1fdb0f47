"$P" run --reginos=x true
