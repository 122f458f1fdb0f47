echo '{"type":"summary","host":"n1","pid":11,"rank":-1,"regions":[],"counters":{"kept_resident":5}}' >a.jsonl
"$P" advise --json a.jsonl
