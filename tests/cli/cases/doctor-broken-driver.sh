# needs: plain
: >libcuda.so.1
LD_LIBRARY_PATH=$PWD "$P" doctor
