"$P" replay nothing-here
