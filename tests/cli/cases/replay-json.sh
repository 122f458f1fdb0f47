"$P" replay --json --valid-fraction=0.25 --page-bytes=64K --moved-percent=5 "$(dirname "$0")/../../data/trace_dropless.tsv"
