"$P" replay --help
