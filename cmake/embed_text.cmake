# Writes a C file with one file's text as `const char NAME[]`.
# cmake -DFILE=... -DNAME=... -DHEADER=... -DOUT=... -P embed_text.cmake
file(READ ${FILE} hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
file(WRITE ${OUT} "#include \"${HEADER}\"\n\nconst char ${NAME}[] = {${hex}0};\n")
