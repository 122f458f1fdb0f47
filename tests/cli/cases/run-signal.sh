# needs: plain
"$P" run -- sh -c 'kill -TERM $$'
[ $? = 143 ] && echo terminated
