# Writes a C file with the files of a folder and `page_find` over them: src/serve/page.h.
# cmake -DFOLDER=... -DOUT=... -P embed.cmake
file(GLOB names RELATIVE ${FOLDER} ${FOLDER}/*)
list(SORT names)
set(arrays "")
set(rows "")
set(i 0)
foreach(name ${names})
  if(name MATCHES "\\.html$")
    set(type "text/html; charset=utf-8")
  elseif(name MATCHES "\\.js$")
    set(type "text/javascript; charset=utf-8")
  elseif(name MATCHES "\\.css$")
    set(type "text/css; charset=utf-8")
  elseif(name MATCHES "\\.svg$")
    set(type "image/svg+xml")
  else()
    continue() # a README is for the tree
  endif()
  set(path "/${name}")
  if(name STREQUAL "index.html")
    set(path "/")
  endif()
  file(READ ${FOLDER}/${name} hex HEX)
  string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  string(APPEND arrays "static const unsigned char file_${i}[] = {${hex}};\n")
  string(APPEND rows "    {\"${path}\", \"${type}\", file_${i}, sizeof file_${i}},\n")
  math(EXPR i "${i} + 1")
endforeach()
file(WRITE ${OUT} "#include \"serve/page.h\"

#include <string.h>

${arrays}
static const struct page_file files[] = {
${rows}};

const struct page_file *page_find(const char *path)
{
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (strcmp(files[i].path, path) == 0) return &files[i];
    return NULL;
}
")
