# A manual page of what a program says of itself.
#   cmake -DPROGRAM=build/release/bin/msa-cost -DVERSION=0.3.0 -DOUTPUT=msa-cost.1 -P man_page.cmake
# Its help is the question that the program answers, the usage, and text that stays as it is.
cmake_path(GET PROGRAM FILENAME name)
execute_process(COMMAND ${PROGRAM} --help-all OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
if(NOT help MATCHES "^${name}: ([^\n]*)\n\nusage: ([^\n]*)\n\n(.*)$")
    message(FATAL_ERROR "${name} --help-all does not begin with its question and its usage")
endif()
set(question "${CMAKE_MATCH_1}")
set(usage "${CMAKE_MATCH_2}")
set(text "${CMAKE_MATCH_3}")
foreach(part question usage text)
    string(REPLACE "\\" "\\e" ${part} "${${part}}")
    string(REPLACE "-" "\\-" ${part} "${${part}}")
    string(REGEX REPLACE "(^|\n)([.'])" "\\1\\\\&\\2" ${part} "${${part}}")
endforeach()
string(TOUPPER ${name} title)
file(WRITE ${OUTPUT} ".TH ${title} 1 \"\" \"msalab ${VERSION}\"
.ad l
.nh
.SH NAME
${name} \\- ${question}
.SH SYNOPSIS
${usage}
.SH DESCRIPTION
.nf
${text}.fi
")
