# libsaccade_cuda.so: the operations on NVIDIA GPUs, loaded by the program at run time. It is built
# by nvcc alone, without CMake's own CUDA language, which wants a toolkit in its usual place: here a
# virtual environment of Python packages will do (`make deps-cuda`), and no GPU is needed.
set(SAC_NVCC "" CACHE FILEPATH "CUDA's compiler, 13.0 or newer")
if(NOT SAC_NVCC)
  unset(SAC_NVCC CACHE)
  find_program(SAC_NVCC nvcc HINTS /usr/local/cuda/bin)
endif()
if(NOT EXISTS "${SAC_NVCC}")
  message(FATAL_ERROR "SAC_CUDA needs nvcc: `make cuda` fetches it, or set -DSAC_NVCC=/path/to/nvcc")
endif()
get_filename_component(SAC_CUDA_ROOT ${SAC_NVCC} REALPATH)
get_filename_component(SAC_CUDA_ROOT ${SAC_CUDA_ROOT}/../.. ABSOLUTE)

# Ampere and Ada; Hopper with its own instructions; what comes after compiles the last at start.
set(SAC_CUDA_ARCHS -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90a,code=sm_90a
    -gencode=arch=compute_90,code=compute_90)
# An imitation, for checks: the code of other GPUs, for an H200 that says it is one (device.cu).
set(SAC_CUDA_AS "" CACHE STRING "compute capability that an H200 imitates: 80, 86, 89, 100 or 120")
if(SAC_CUDA_AS MATCHES "^8[069]$")
  set(SAC_CUDA_ARCHS -gencode=arch=compute_80,code=sm_90 -DSAC_CUDA_AS=${SAC_CUDA_AS})
elseif(SAC_CUDA_AS MATCHES "^1[02]0$")
  set(SAC_CUDA_ARCHS -gencode=arch=compute_90,code=sm_90 -DSAC_CUDA_AS=${SAC_CUDA_AS})
elseif(SAC_CUDA_AS)
  message(FATAL_ERROR "SAC_CUDA_AS is 80, 86, 89, 100 or 120")
endif()
set(SAC_NVCC_FLAGS -std=c++20 -O3 -lineinfo --expt-relaxed-constexpr -D_GNU_SOURCE
    -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_SOURCE_DIR}/include
    -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra,-Wno-missing-field-initializers)
if(SAC_WERROR)
  list(APPEND SAC_NVCC_FLAGS -Werror=all-warnings -Xcompiler=-Werror)
endif()

file(GLOB SAC_CUDA_SOURCES CONFIGURE_DEPENDS src/ops/cuda/*.cu)
foreach(source ${SAC_CUDA_SOURCES})
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
  add_custom_command(
    OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda
    COMMAND ${SAC_NVCC} ${SAC_NVCC_FLAGS} ${SAC_CUDA_ARCHS} -MD -MF ${object}.d -MT ${object}
            -c ${source} -o ${object}
    COMMENT "nvcc ${name}.cu")
  list(APPEND SAC_CUDA_OBJECTS ${object})
endforeach()

# cuBLASLt is looked up at run time, in the usual places and where the compiler has it.
set(library ${CMAKE_BINARY_DIR}/libsaccade_cuda.so)
add_custom_command(
  OUTPUT ${library} DEPENDS ${SAC_CUDA_OBJECTS} VERBATIM COMMAND_EXPAND_LISTS
  COMMAND ${SAC_NVCC} -shared -cudart static -L${SAC_CUDA_ROOT}/lib ${SAC_CUDA_OBJECTS} -o ${library}
          -Xlinker=-rpath,${SAC_CUDA_ROOT}/lib,-rpath,${SAC_CUDA_ROOT}/lib64,--no-undefined
          -lpthread -ldl -lrt
  COMMENT "libsaccade_cuda.so")
add_custom_target(saccade_cuda ALL DEPENDS ${library})
install(FILES ${library} DESTINATION ${CMAKE_INSTALL_LIBDIR})
