echo broken >a.jsonl; "$P" report a.jsonl
