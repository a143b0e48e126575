# What `make install` puts where: headers, static and shared library, saccade.pc, program, manual,
# completions of shells, the fetch script with its list, licences, a systemd unit to copy.
add_library(saccade_shared SHARED $<TARGET_OBJECTS:saccade_objects>)
set_target_properties(saccade_shared PROPERTIES OUTPUT_NAME saccade VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR})
target_link_libraries(saccade_shared PRIVATE saccade_objects)

# One relocatable object whose hidden symbols are made local: short internal names such as
# `page_init` cannot clash with those of a program that links the archive.
set(archive ${CMAKE_BINARY_DIR}/libsaccade.a)
add_custom_command(
  OUTPUT ${archive}
  COMMAND ${CMAKE_LINKER} -r -o saccade_all.o $<TARGET_OBJECTS:saccade_objects>
  COMMAND ${CMAKE_OBJCOPY} --localize-hidden saccade_all.o
  COMMAND ${CMAKE_COMMAND} -E rm -f ${archive}
  COMMAND ${CMAKE_AR} rcs ${archive} saccade_all.o
  DEPENDS saccade_objects $<TARGET_OBJECTS:saccade_objects>
  COMMAND_EXPAND_LISTS VERBATIM)
add_custom_target(saccade_archive ALL DEPENDS ${archive})

configure_file(cmake/saccade.pc.in saccade.pc @ONLY)

install(TARGETS saccade_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${archive} DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/saccade.h include/saccade_cache.h include/saccade_machine.h
        include/saccade_method.h include/saccade_tier.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# `cmake --install --prefix` may name another folder than the configuration.
install(CODE "
  file(READ \"${CMAKE_BINARY_DIR}/saccade.pc\" pc)
  string(REGEX REPLACE \"^prefix=[^\\n]*\" \"prefix=\${CMAKE_INSTALL_PREFIX}\" pc \"\${pc}\")
  file(WRITE \"${CMAKE_BINARY_DIR}/saccade.pc\" \"\${pc}\")")
install(FILES ${CMAKE_BINARY_DIR}/saccade.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(TARGET saccade)
  install(TARGETS saccade RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES docs/man/saccade.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  # The program finds them from where it lies: bin/../share/saccade.
  install(FILES tools/fetch.py tools/models.tsv DESTINATION ${CMAKE_INSTALL_DATADIR}/saccade)
  set(shells bash zsh fish)
  set(folders bash-completion/completions zsh/site-functions fish/vendor_completions.d)
  set(names saccade _saccade saccade.fish)
  foreach(shell folder name IN ZIP_LISTS shells folders names)
    set(script ${CMAKE_BINARY_DIR}/completion/${shell}/${name})
    add_custom_command(OUTPUT ${script} DEPENDS saccade VERBATIM
                       COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/completion/${shell}
                       COMMAND saccade completion ${shell} > ${script})
    list(APPEND scripts ${script})
    install(FILES ${script} DESTINATION ${CMAKE_INSTALL_DATADIR}/${folder})
  endforeach()
  add_custom_target(saccade_completion ALL DEPENDS ${scripts})
endif()
install(FILES LICENSE THIRD_PARTY DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/saccade)
install(FILES examples/saccade.service DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/saccade/examples)
