mkdir m
cat >m/a.jsonl <<'X'
{"type":"range","schema":1,"range":"step0","time_ns":1,"phase":"begin","counters":{"steps":1,"kept_resident":99}}
{"type":"summary","schema":1,"version":"0.1.0","host":"n1","pid":11,"rank":0,"limit_factor_percent":134,"limit_is_largest":0,"regions":[{"name":"experts","capacity":4000,"balanced":1000,"needed":1710,"n_over":0,"used_ppm":1}],"counters":{"steps":100,"plans":1,"bytes_spilled":249980518400,"limit_bytes":4194304000,"limit_wanted_bytes":5242880000,"limit_short_bytes":1048576000}}
X
cat >m/b.jsonl <<'X'
{"type":"summary","schema":1,"version":"0.1.0","host":"n2","pid":12,"rank":1,"limit_factor_percent":120,"limit_is_largest":0,"regions":[{"name":"experts","capacity":4000,"balanced":1000,"needed":4100,"n_over":2,"used_ppm":1}],"counters":{"steps":100,"plans":1,"bytes_spilled":100,"limit_bytes":4194304000,"limit_wanted_bytes":5242880000,"limit_short_bytes":1}}
X
"$P" advise m
