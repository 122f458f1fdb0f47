"$P" config --doc --all >all
sed "s/^PAGEDSTASH_MIN_BYTES=.*/PAGEDSTASH_MIN_BYTES=3M/" all >changed
PAGEDSTASH_CONFIG_FILE=$PWD/changed "$P" config | grep -v CONFIG_FILE >again
diff again changed | grep "^<"
grep -c = again
PAGEDSTASH_CONFIG_FILE=$PWD/changed "$P" config --changed | grep -v CONFIG_FILE
