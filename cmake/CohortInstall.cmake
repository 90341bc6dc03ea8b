# SPDX-License-Identifier: Apache-2.0
# libcohort.so, its headers and what finds them: cohort-config.cmake (target Cohort::cohort) and cohort.pc.
include(CMakePackageConfigHelpers)

# One shared library of all modules but the command and the tests' own.
get_property(modules GLOBAL PROPERTY COHORT_MODULES)
list(REMOVE_ITEM modules cohort_cli cohort_testing)
add_library(cohort SHARED ${PROJECT_SOURCE_DIR}/cmake/no_source.cpp)
cohort_compile_options(cohort)
cohort_link_whole(cohort ${modules})
target_include_directories(cohort INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                            $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(cohort PUBLIC ${TORCH_LIBRARIES})
target_compile_features(cohort INTERFACE cxx_std_20)
set_target_properties(cohort PROPERTIES VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

install(TARGETS cohort EXPORT CohortTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET cohort_command)
  install(TARGETS cohort_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/cohort DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT headers)

# These names serve find_package(Cohort) and find_package(cohort).
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Cohort)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/CohortConfig.cmake.in
  ${PROJECT_BINARY_DIR}/cohort-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cohort-config-version.cmake COMPATIBILITY SameMinorVersion)
# For pkg-config: where LibTorch is, when that is not where compilers look anyway.
get_filename_component(torch_libdir ${c10_LIBRARY} DIRECTORY)
set(torch_include_flags ${TORCH_INCLUDE_DIRS})
list(REMOVE_ITEM torch_include_flags ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
list(TRANSFORM torch_include_flags PREPEND "-isystem ")
list(JOIN torch_include_flags " " torch_include_flags)
if(NOT torch_libdir IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
  set(torch_library_flags "-L${torch_libdir} -Wl,-rpath,${torch_libdir}")
endif()
file(RELATIVE_PATH prefix_from_pkgconfig /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/cohort.pc.in ${PROJECT_BINARY_DIR}/cohort.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/cohort-config.cmake ${PROJECT_BINARY_DIR}/cohort-config-version.cmake
  DESTINATION ${package_dir})
install(EXPORT CohortTargets NAMESPACE Cohort:: DESTINATION ${package_dir})
install(FILES ${PROJECT_BINARY_DIR}/cohort.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
