"$P" --version
