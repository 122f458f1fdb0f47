"$P" rnu
