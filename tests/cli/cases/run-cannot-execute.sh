echo x >file
"$P" run -- ./file
