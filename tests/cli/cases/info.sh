"$P" info
