/* limits.h: limits on the cost of a document. A text of a million tokens has about five million
 * bytes, so these limits are far above what one reads and low enough to stop a malicious file. */
#ifndef SAC_TEXT_LIMITS_H
#define SAC_TEXT_LIMITS_H

#define LIMITS_INPUT_BYTES  ((size_t)1 << 29) /* of a file */
#define LIMITS_TEXT_BYTES   ((size_t)1 << 28) /* unpacked, and of the extracted text */
#define LIMITS_ZIP_MEMBERS  16384u            /* of a DOCX, ODT or EPUB */
#define LIMITS_EPUB_PARTS   4096u             /* chapters */
#define LIMITS_CHILD_S      120u              /* for pdftotext */
#define LIMITS_CHILD_MEMORY ((size_t)4 << 30) /* address space */
#define LIMITS_SPACES       64u               /* that one ODT element may produce */

#endif
