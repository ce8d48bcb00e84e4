/* Stands for libmesa.so where only its loading is tested: a sanitized build of the real one could not
 * be preloaded into plain programs.
 *
 * SPDX-License-Identifier: MIT */
const char *mesa_version(void);

__attribute__((visibility("default"))) const char *mesa_version(void) {
    return "stub";
}
