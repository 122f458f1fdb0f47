"$P" demo --device tpu
