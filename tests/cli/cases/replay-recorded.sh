# needs: plain
export LD_LIBRARY_PATH="$SIMCUDA_DIR" SIMCUDA=mem=8G,granularity=4K
"$P" run --min-bytes=64K --trace=. -- "$(dirname "$P")/demo/pagedstash-demo" --steps 4 >lines
mv ./*.trace.tsv t
head -n 2 t
cut -f 2 t | sort -u | tr '\n' ' '
echo
"$P" replay --json --capacity=4 --granularity=4K --page-bytes=4K t
