"$P" --help
