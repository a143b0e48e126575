# What `make install` puts where: header, static and shared library, saccade.pc, program, manual.
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
install(FILES include/saccade.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_BINARY_DIR}/saccade.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(TARGET saccade)
  install(TARGETS saccade RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES docs/man/saccade.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
