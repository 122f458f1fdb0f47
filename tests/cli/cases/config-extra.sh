"$P" config log
