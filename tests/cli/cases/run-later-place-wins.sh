# needs: plain
mkdir -p "$HOME/.config"
echo PAGEDSTASH_BUFFER_SIZE_FACTOR_CUDA=1.5 >"$HOME/.config/pagedstash.conf"
PAGEDSTASH_CUDA_BUDGET=8G "$P" run -- "$P" config --changed
