/* Takes an account and writes it to where MESA_REPORT says. Whatever fails here is one line on stderr
 * and nothing else: a report must not fail a training.
 *
 * SPDX-License-Identifier: MIT */
#include "report/report.h"

#include "report/account.h"
#include "report/buffer.h"
#include "report/target.h"
#include "report/text.h"

#include <string.h>
#include <unistd.h>

static void complain(const char *what, const char *why) {
    char line[1024];
    mesa_print_into(line, sizeof line, "mesa: cannot write report %.700s: %s\n", what, why);
    (void)mesa_write_all(STDERR_FILENO, line, strlen(line)); /* there is nobody left to tell */
}

static void complain_errno(const char *what, int error) {
    char why[128];
    complain(what, strerror_r(error, why, sizeof why));
}

static bool is_empty(const struct mesa_account *account) {
    bool empty = account->totals.tensors == 0;
    for (int why = 0; why < MESA_KEPT_COUNT; why++)
        empty = empty && account->totals.kept[why] == 0;
    return empty;
}

static void write_text(int fd, const struct mesa_account *account) {
    struct mesa_buffer text = {0};
    mesa_text_render(account, &text);
    if (text.failed)
        complain("as text", "no memory");
    else
        (void)mesa_write_all(fd, text.bytes, text.length); /* stderr itself may be what is broken */
    mesa_buffer_done(&text);
}

static void write_file(const char *pattern, const struct mesa_account *account) {
    struct mesa_buffer path = {0}, contents = {0};
    mesa_report_expand(pattern, account, &path);
    mesa_report_format_of(pattern)->render(account, &contents);
    if (path.failed || contents.failed) {
        complain(pattern, "no memory");
    } else {
        int error = mesa_write_file(path.bytes, contents.bytes, contents.length);
        if (error != 0)
            complain_errno(path.bytes, error);
    }
    mesa_buffer_done(&path);
    mesa_buffer_done(&contents);
}

void mesa_report_write(const struct mesa_report_target *target, const struct mesa_run *run) {
    struct mesa_account account;
    if (!target->text && target->file_count == 0)
        return;
    if (!mesa_account_take(run, &account)) {
        complain("of this run", "no memory");
        return;
    }
    if (!is_empty(&account)) {
        for (size_t i = 0; i < target->file_count; i++)
            write_file(target->files[i], &account);
        if (target->text)
            write_text(STDERR_FILENO, &account);
    }
    mesa_account_done(&account);
}

void mesa_report_text(int fd, const struct mesa_run *run) {
    struct mesa_account account;
    if (!mesa_account_take(run, &account)) {
        complain("as text", "no memory");
        return;
    }
    write_text(fd, &account);
    mesa_account_done(&account);
}
