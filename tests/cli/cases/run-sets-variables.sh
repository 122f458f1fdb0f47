# needs: plain
PAGEDSTASH_REGIONS=mine PAGEDSTASH_MIN_BYTES=1M "$P" run --min-bytes 2M --keep-allocator --strict=n -- env | grep '^PAGEDSTASH_' | sort
