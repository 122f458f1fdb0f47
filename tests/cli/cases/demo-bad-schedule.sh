"$P" demo --device simcuda --schedule interleaved --stages 4 --microbatches 6
