"$P" run --help
