"$P" run --min-bytes
