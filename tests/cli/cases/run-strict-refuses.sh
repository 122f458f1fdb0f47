PAGEDSTASH_LOG_LVEL=info "$P" run --strict -- echo not reached
