# needs: plain
PAGEDSTASH_DISABLE=maybe PAGEDSTASH_LOG_LVEL=info "$P" run -- sh -c 'env | grep -c ^PAGEDSTASH_'
