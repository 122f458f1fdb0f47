"$P" report nowhere
