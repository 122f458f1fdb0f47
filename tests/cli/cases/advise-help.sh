"$P" advise --help && "$P" report --help
