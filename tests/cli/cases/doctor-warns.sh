# needs: plain
: >libcuda.so.1
export LD_LIBRARY_PATH=$PWD NVTX_INJECTION64_PATH=/nonexistent/tool.so
PAGEDSTASH_RNAK=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "$P" doctor | grep ^warn
