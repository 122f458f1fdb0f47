mkdir m
echo 'not json' >m/readme.txt
echo '{"type":"summary","host":"n1","pid":11,"rank":1,"counters":{"steps":3,"tensors":5,"bytes_stashed":3145728,"place_bytes_peak":9437184,"errors":1}}' >m/a.jsonl
{
  echo '{"type":"range","range":"step1","counters":{"steps":1,"tensors":2}}'
  echo '{"type":"range","range":"step2","pid":12,"rank":0,"counters":{"steps":2,"tensors":4,"bytes_stashed":1048576,"place_bytes_peak":1048576}}'
  printf '{"type":"range","cou' # it was killed
} >m/b.jsonl
"$P" report m
"$P" report --format=csv m/a.jsonl
"$P" report --format=json m
