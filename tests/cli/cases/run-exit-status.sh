# needs: plain
"$P" run -- sh -c 'exit 7'
