"$P" info more
