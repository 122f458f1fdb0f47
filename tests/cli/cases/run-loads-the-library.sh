# needs: plain
"$P" run -- sed -n 's/.*\/\(libpagedstash.so\)$/\1/p' /proc/self/maps | sort -u
