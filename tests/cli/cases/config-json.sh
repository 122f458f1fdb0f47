PAGEDSTASH_RANK=x "$P" config --json 2>/dev/null | python3 -c "
import json, sys
c = json.load(sys.stdin)
print(c[\"settings\"][\"PAGEDSTASH_PAGE_BYTES\"][\"default\"], len(c[\"warnings\"]))"
