"$P" report --format=xml .
