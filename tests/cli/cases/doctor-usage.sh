"$P" doctor --jsno
