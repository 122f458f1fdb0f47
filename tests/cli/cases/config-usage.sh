"$P" config --lal
