/* report_save.h: the page's only script, report_save.js, as text: buttons that save figures. */
#ifndef SAC_EVAL_REPORT_SAVE_H
#define SAC_EVAL_REPORT_SAVE_H

extern const char report_save_js[];

#endif
