# Files of one instruction set are named *_<isa>.c and compiled with its flags; run-time detection
# decides whether they are called. Files of another processor's sets are left out.
set(SAC_FLAGS_avx2 -mavx2 -mfma -mf16c -mbmi2)
set(SAC_FLAGS_avx512 ${SAC_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
    -mavx512vbmi -mavx512bf16)
set(SAC_FLAGS_amx ${SAC_FLAGS_avx512} -mavx512fp16)
# Clang's own assembler learnt tdpfp16ps in version 16; binutils has it from 2.40 on.
if(CMAKE_C_COMPILER_ID STREQUAL "Clang" AND CMAKE_C_COMPILER_VERSION VERSION_LESS 16)
  list(APPEND SAC_FLAGS_amx -fno-integrated-as)
endif()

# AddressSanitizer's checks as calls: inlined ones make functions of thousands of loads, which gcc 12
# did not get through in an hour, a file of branches; called ones see the same faults.
set(SAC_FLAGS_checked "")
if(SAC_SANITIZE MATCHES "address" AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
  set(SAC_FLAGS_checked --param=asan-instrumentation-with-call-threshold=0)
endif()

function(sac_isa_flags list)
  set(sources ${${list}})
  foreach(source ${sources})
    get_filename_component(stem ${source} NAME_WE)
    if(stem MATCHES "_(avx2|avx512|amx|neon)$")
      set(isa ${CMAKE_MATCH_1})
      if(isa STREQUAL "neon")
        set(processor "aarch64|arm64")
      else()
        set(processor "x86_64|AMD64")
      endif()
      if(CMAKE_SYSTEM_PROCESSOR MATCHES "${processor}")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
                                    "${SAC_FLAGS_${isa}};${SAC_FLAGS_checked}")
      else()
        list(REMOVE_ITEM sources ${source})
      endif()
    endif()
  endforeach()
  set(${list} ${sources} PARENT_SCOPE)
endfunction()
