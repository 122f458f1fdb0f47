"$P" demo --help
