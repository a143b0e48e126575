/* escape.h: escapes for characters that are hard to type. */
#ifndef SAC_APP_ESCAPE_H
#define SAC_APP_ESCAPE_H

/* Replaces \n \r \t \" \' \\ and \xNN (except \x00) in place. Other backslashes stay. */
void escape_undo(char *text);

#endif
