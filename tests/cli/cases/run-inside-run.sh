# needs: plain
"$P" run -- "$P" run -- sh -c 'echo "$LD_PRELOAD" | tr : "\n" | grep -c libpagedstash'
