/* MESA_REPORT: what it may say, and what the names become.
 *
 * SPDX-License-Identifier: MIT */
#include "report/target.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct mesa_report_target parse(const char *text) {
    struct mesa_report_target target;
    char mistake[256] = "";
    cr_assert(mesa_report_parse(text, &target, mistake, sizeof mistake), "%s: %s", text, mistake);
    return target;
}

static void refuse(const char *text, const char *because) {
    struct mesa_report_target target;
    char mistake[256] = "";
    cr_assert(not(mesa_report_parse(text, &target, mistake, sizeof mistake)), "%s", text);
    cr_assert(ne(ptr, strstr(mistake, because), NULL), "%s: %s", text, mistake);
    cr_assert(eq(ptr, strchr(mistake, '\n'), NULL));
}

Test(target, reads_a_list) {
    struct mesa_report_target target = parse(" text , /tmp/a.json,/tmp/%r.txt,");
    cr_assert(target.text);
    cr_assert(eq(sz, target.file_count, 2));
    cr_assert(eq(str, target.files[0], "/tmp/a.json"));
    cr_assert(eq(str, target.files[1], "/tmp/%r.txt"));
    mesa_report_target_done(&target);
    cr_assert(eq(sz, target.file_count, 0));
}

Test(target, is_text_unless_something_is_said) {
    struct mesa_report_target target = parse("");
    cr_assert(target.text);
    target = parse("none");
    cr_assert(not(target.text));
    target = parse("/tmp/a.json");
    cr_assert(not(target.text));
    mesa_report_target_done(&target);
}

Test(target, names_mistakes) {
    refuse("json", "unknown report 'json'");
    refuse("text,report.html", "unknown report 'report.html'");
    refuse(".json", "unknown report '.json'");
    refuse("a%x.json", "unknown '%x'");
    refuse("a%%%.json", "unknown '%.'");
    refuse("none,text", "'none' stands beside");
    refuse("a.json,none", "'none' stands beside");
    refuse("1.json,2.json,3.json,4.json,5.json,6.json,7.json,8.json,9.json", "more than 8");
    char mistake[8];
    struct mesa_report_target target;
    cr_assert(not(mesa_report_parse("nonsense", &target, mistake, sizeof mistake)));
    cr_assert(eq(sz, strlen(mistake), 7));
}

Test(target, stays_where_the_program_started) {
    char directory[] = "/tmp/mesa-100%-XXXXXX", wanted[64];
    cr_assert(ne(ptr, mkdtemp(directory), NULL));
    cr_assert(eq(int, chdir(directory), 0));
    struct mesa_report_target target = parse("a%p.json");
    cr_assert(eq(int, chdir("/"), 0));
    struct mesa_buffer path = {0};
    mesa_report_expand(target.files[0], &(struct mesa_account){.pid = 42}, &path);
    snprintf(wanted, sizeof wanted, "%s/a42.json", directory);
    cr_assert(eq(str, path.bytes, wanted));
    mesa_buffer_done(&path);
    mesa_report_target_done(&target);
    rmdir(directory);
}

Test(target, expands_letters) {
    struct mesa_account account = {.pid = 42, .rank = 7, .host = "node"};
    struct mesa_buffer path = {0};
    mesa_report_expand("/%h/%p-%r-%%.json", &account, &path);
    cr_assert(eq(str, path.bytes, "/node/42-7-%.json"));
    mesa_buffer_done(&path);
}

Test(target, takes_the_rank_from_the_environment) {
    unsetenv("RANK");
    unsetenv("LOCAL_RANK");
    cr_assert(eq(uint, mesa_account_rank(), 0));
    setenv("LOCAL_RANK", "3", 1);
    cr_assert(eq(uint, mesa_account_rank(), 3));
    setenv("RANK", "11", 1);
    cr_assert(eq(uint, mesa_account_rank(), 11));
    setenv("RANK", "../../etc", 1);
    cr_assert(eq(uint, mesa_account_rank(), 3));
}
