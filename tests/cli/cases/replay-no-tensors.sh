"$P" replay --regions='other*' "$(dirname "$0")/../../data/trace_padded.tsv"
