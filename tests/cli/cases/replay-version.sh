printf '#pagedstash-trace\t2\n' >t
"$P" replay t
