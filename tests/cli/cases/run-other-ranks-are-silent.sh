# needs: plain
RANK=1 PAGEDSTASH_RNAK=0 "$P" run -- true
