"$P" config --filter log_
