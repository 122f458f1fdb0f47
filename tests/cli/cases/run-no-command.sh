"$P" run --strict --
