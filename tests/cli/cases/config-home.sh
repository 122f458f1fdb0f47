mkdir -p "$HOME/.config"
echo PAGEDSTASH_REGIONS=layer* >"$HOME/.config/pagedstash.conf"
"$P" config --changed
