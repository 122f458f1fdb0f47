# needs: plain
LD_PRELOAD=/nonexistent/other.so "$P" run -- sh -c 'echo "$LD_PRELOAD"' 2>/dev/null
