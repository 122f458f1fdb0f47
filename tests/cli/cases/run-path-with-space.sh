mkdir "a folder" "a folder/tools" "a folder/shim"
cp "$P" "a folder/tools/"
cp "$(dirname "$P")/../shim/libpagedstash.so" "a folder/shim/"
"a folder/tools/pagedstash" run -- true
