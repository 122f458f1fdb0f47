"$P" run -- /nonexistent/program
