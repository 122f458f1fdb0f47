for flag in --capacity=0.5 --valid-fraction=1.5 --granularity=3M --page-bytes=100 --moved-percent=101 --pool-percent=x --kind=16 --min-bytes=0; do
  "$P" replay $flag t && echo "taken: $flag"
done
"$P" replay --capcity=2 t
