"$P" run --page-bytes=700 true
