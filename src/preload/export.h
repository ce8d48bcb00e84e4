/* What the dynamic linker sees of a function. Its name must stand in exports.def as well.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_PRELOAD_EXPORT_H
#define MESA_PRELOAD_EXPORT_H

#define EXPORT __attribute__((visibility("default")))

#endif
