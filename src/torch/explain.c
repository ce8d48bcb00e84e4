/* Formats one line on the stack and writes it with one call.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/explain.h"

#include "torch/config.h"

#include <stdio.h>
#include <unistd.h>

static void describe(const struct mesa_view *view, const struct mesa_heads *heads,
                     const struct mesa_held *held, char *text, size_t size) {
    struct mesa_source source;
    text[0] = '\0';
    if (held != NULL)
        mesa_layout_describe(view, &held->source, heads, &held->plan, text, size);
    else if (mesa_layout_source(view, &source) == MESA_OK)
        mesa_layout_describe(view, &source, heads, NULL, text, size);
}

void mesa_explain(struct mesa_decision *decision, const struct mesa_view *view,
                  const struct mesa_heads *heads, const struct mesa_held *held, unsigned row,
                  size_t held_bytes) {
    if (!mesa_config.explain || atomic_exchange(&decision->explained, true))
        return;
    char layout[256], line[1024];
    describe(view, heads, held, layout, sizeof layout);
    const struct mesa_record *record = mesa_decision_record(decision, row);
    const struct mesa_place *place = &decision->choice.place;
    int n = snprintf(
        line, sizeof line, "mesa: %s.%s %s %s: %s%s%s, %zu -> %zu bytes, rule %s:%u\n",
        decision->site->op, decision->site->argument, mesa_dtype_name(decision->dtype), layout,
        record == NULL ? "keep" : record->way, row >= MESA_RECORD_KEPT ? ", " : "",
        row >= MESA_RECORD_KEPT ? mesa_kept_text((enum mesa_kept)(row - MESA_RECORD_KEPT)) : "",
        view->elements * mesa_dtype_bytes(view->dtype),
        row >= MESA_RECORD_KEPT ? view->elements * mesa_dtype_bytes(view->dtype) : held_bytes,
        place->file == NULL ? "built in" : place->file, place->line);
    if (n > 0 &&
        write(STDERR_FILENO, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1) < 0)
        return; /* stderr is closed: nothing to tell, nothing to do */
}
