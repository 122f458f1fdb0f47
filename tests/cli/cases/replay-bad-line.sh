printf '#pagedstash-trace\t1\n#min_bytes\t1\n5\tpush\t0\t-\t-\t-\tx\n6\talloc\t0\t0\tseven\t12\ttensor 0\n' >t
"$P" replay t
