mkdir tools
cp "$P" tools/
tools/pagedstash run -- true
