"$P" run -z true
