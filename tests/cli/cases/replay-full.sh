# Nothing is assumed: every tensor is full, and nothing is to be gained.
"$P" replay "$(dirname "$0")/../../data/trace_dropless.tsv"
