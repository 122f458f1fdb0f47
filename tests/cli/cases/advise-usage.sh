"$P" advise
