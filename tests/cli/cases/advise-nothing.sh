echo '{"type":"summary","host":"n1","pid":11,"rank":0,"regions":"not a list","counters":{"steps":3}}' >a.jsonl
"$P" advise a.jsonl a.jsonl
