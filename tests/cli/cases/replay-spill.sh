"$P" replay --budget=8G --link-rate=55 "$(dirname "$0")/../../data/trace_moe12_capacity2.tsv"
