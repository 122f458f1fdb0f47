# needs: plain
LD_LIBRARY_PATH=$SIMCUDA_DIR "$P" doctor --json | python3 -c "
import json, sys
d = json.load(sys.stdin)
print(d['ok'], sorted({c['name'] for c in d['checks'] if c['verdict'] == 'ok'} & {'library', 'driver', 'device', 'kernel parameters'}))"
