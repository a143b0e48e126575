/* reads.c: see the header. */
#include "engine/reads.h"

void reads_add(sac_reads *to, const sac_reads *from)
{
    const double bound = from->out_bound_max;
    to->n_prompt_tok += from->n_prompt_tok;
    to->n_decode_tok += from->n_decode_tok;
    to->n_reused_tok += from->n_reused_tok;
    to->n_disk_tok += from->n_disk_tok;
    to->kv_bytes_read += from->kv_bytes_read;
    to->attend_bytes_read += from->attend_bytes_read;
    to->choose_bytes_read += from->choose_bytes_read;
    to->build_bytes_read += from->build_bytes_read;
    to->dense_bytes += from->dense_bytes;
    to->n_select += from->n_select;
    to->n_select_dense += from->n_select_dense;
    to->n_select_nan += from->n_select_nan;
    to->n_bypass += from->n_bypass;
    to->n_select_proved += from->n_select_proved;
    to->mass_proved += from->mass_proved;
    to->out_bound += from->out_bound;
    to->out_bound_max = bound > to->out_bound_max ? bound : to->out_bound_max;
    to->n_page_dropped += from->n_page_dropped;
    to->n_tok_seen += from->n_tok_seen;
    to->n_tok_read += from->n_tok_read;
    to->n_tok_chosen += from->n_tok_chosen;
    to->n_cell += from->n_cell;
    to->n_cell_read += from->n_cell_read;
    to->n_plan += from->n_plan;
    to->n_plan_dense += from->n_plan_dense;
    to->n_plan_past += from->n_plan_past;
    to->n_plan_nan += from->n_plan_nan;
    to->n_plan_overflow += from->n_plan_overflow;
    to->plan_mass += from->plan_mass;
    to->n_plan_mass += from->n_plan_mass;
}
