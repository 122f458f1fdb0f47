"$P" demo --device simcuda --capacity much
