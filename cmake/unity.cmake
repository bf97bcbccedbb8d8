# Unity builds (CMAKE_UNITY_BUILD): the sources of one folder are compiled as one, which parses
# the headers that they share once. Checks, whose machine code nobody keeps, compile those of a whole
# target as one (MSA_UNITY_WHOLE), which for clang-tidy takes half of the time again. Whatever stands
# in an anonymous namespace therefore needs a name that no other source of its target uses.
option(MSA_UNITY_WHOLE "A unity build compiles the sources of a target, not of a folder, as one" OFF)

# msa_unity(<target> [ALONE <regular expression>] [PARTS <number>] [WHOLE_PARTS <number>]): groups
# the target's sources by folder, those of a folder in as many parts, which several cores compile at
# a time. Sources that match the expression are compiled alone: heavy ones, and hot loops, whose
# machine code must not depend on their neighbours. With MSA_UNITY_WHOLE all sources are grouped, in
# the second number of parts, whatever their folder.
function(msa_unity target)
    cmake_parse_arguments(UNITY "" "ALONE;PARTS;WHOLE_PARTS" "" ${ARGN})
    if(MSA_UNITY_WHOLE)
        set(UNITY_PARTS ${UNITY_WHOLE_PARTS})
        set(UNITY_ALONE "")
    endif()
    if(NOT UNITY_PARTS)
        set(UNITY_PARTS 1)
    endif()
    set(turn 0)
    set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
    get_target_property(sources ${target} SOURCES)
    foreach(source IN LISTS sources)
        if(IS_ABSOLUTE "${source}" OR (UNITY_ALONE AND source MATCHES "${UNITY_ALONE}"))
            continue()  # a generated source, or one to be compiled alone
        endif()
        set(group ${target})
        if(NOT MSA_UNITY_WHOLE)
            get_filename_component(folder "${source}" DIRECTORY)
            string(REPLACE "/" "_" folder "${folder}")
            string(APPEND group "_${folder}")
        endif()
        math(EXPR part "${turn} % ${UNITY_PARTS}")
        math(EXPR turn "${turn} + 1")
        if(UNITY_PARTS GREATER 1)
            string(APPEND group "_${part}")
        endif()
        set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
    endforeach()
endfunction()
