"$P" replay --capacity=2 "$(dirname "$0")/../../data/trace_padded.tsv"
