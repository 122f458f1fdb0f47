PAGEDSTASH_LOG_LEVEL=INFO "$P" config --changed
