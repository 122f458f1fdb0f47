mkdir m; "$P" report m
